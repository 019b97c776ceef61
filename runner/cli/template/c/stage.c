/* A stage for Penstock: see README.md. */
#include <ctype.h>
#include <stdlib.h>

#include "penstock.h"

/* The param `words` of the document; manifest.json has its schema. A double, as any number in JSON. */
static double most = 20;

struct text set_up(struct text params) {
    struct text words = param(params, "words");
    if (words.length > 0) most = strtod(words.bytes, NULL);
    return text_of("");
}

/* Keeps the first words of a text file. Drops a file without words; refuses a file that is not text. */
struct outcome process(struct item item) {
    const struct value *file = find(&item, "bytes", BLOB);
    if (file == NULL || !is_utf8(file->blob))
        return (struct outcome){.type = FAILED, .failed = text_of("`bytes` has no text in UTF-8")};
    char *text = allocate(file->blob.length);
    size_t length = 0;
    int64_t words = 0;
    bool is_in_word = false;
    for (size_t at = 0; at < file->blob.length; at++) {
        unsigned char letter = file->blob.bytes[at];
        if (isspace(letter)) {
            is_in_word = false;
            continue;
        }
        if (!is_in_word && ++words > most) break;
        if (!is_in_word && words > 1) text[length++] = ' ';
        is_in_word = true;
        text[length++] = letter;
    }
    if (words == 0) return (struct outcome){.type = DROP};
    if (words > most) {
        count("cut", 1);
        words--;
    }
    struct field *made = allocate(2 * sizeof *made);
    made[0] = (struct field){text_of("text"), {.type = TEXT, .text = {text, length}}};
    made[1] = (struct field){text_of("words"), {.type = INT, .whole = words}};
    item.fields = (struct fields){made, 2};
    return (struct outcome){.type = KEEP, .keep = item};
}
