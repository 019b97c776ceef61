/* Golden guest of the tests: each sample names what the stage does. */
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "penstock.h"

static char given[64];

struct text set_up(struct text params) {
    struct text list = param(params, "list"), last = param(params, "last"), none = param(params, "a");
    snprintf(given, sizeof given, "%.*s %.*s %zu", (int)list.length, list.bytes, (int)last.length, last.bytes, none.length);
    return text_of("");
}

static int by_letter(const void *one, const void *other) { return *(const char *)one - *(const char *)other; }

static int deep(int depth) {
    volatile int frame[16] = {depth}; /* keeps the compiler from making a loop of it */
    return depth == 0 ? 0 : frame[0] + deep(depth - 1);
}

struct outcome process(struct item item) {
    const struct value *field = find(&item, "text", TEXT);
    if (field == NULL) return (struct outcome){.type = FAILED, .failed = text_of("no `text`")};
    char word[32] = "", *said = allocate(256);
    memcpy(word, field->text.bytes, field->text.length < 31 ? field->text.length : 31);
    strcpy(said, word);
#define ON(name) if (strcmp(word, name) == 0)
    ON("print") {
        printf("to stdout %d\n%s", 3, "unfinished");
        fprintf(stderr, "to stderr\n");
    }
    ON("sort") qsort(said, strlen(said), 1, by_letter);
    ON("malloc") {
        char *block = malloc(1 << 20);
        memset(block, 'm', 1 << 20);
        snprintf(said, 256, "%c", block[1 << 19]);
        free(block);
    }
    ON("random") {
        unsigned char bytes[8];
        int error = getentropy(bytes, sizeof bytes);
        snprintf(said, 256, "%d %02x%02x%02x %d", error, bytes[0], bytes[1], bytes[7], rand());
    }
    ON("clock") {
        struct timespec now;
        clock_gettime(CLOCK_MONOTONIC, &now);
        snprintf(said, 256, "%lld %lld", (long long)time(NULL), (long long)now.tv_nsec);
    }
    ON("sleep") {
        unsigned left = sleep(3600);
        snprintf(said, 256, "%u %lld", left, (long long)time(NULL));
    }
    ON("environment") snprintf(said, 256, "%s", getenv("PATH") == NULL ? "none" : "some");
    ON("file") {
        FILE *file = fopen("/etc/passwd", "r");
        snprintf(said, 256, "%s: %s", file == NULL ? "no file" : "a file", strerror(errno));
    }
    ON("input") snprintf(said, 256, "%d", getchar());
    ON("exit") {
        printf("before the exit");
        exit(3);
    }
    ON("assert") assert(!"reached");
    ON("abort") abort();
    ON("deep") snprintf(said, 256, "%d", deep(100000000));
    ON("memory") memset(allocate(1 << 30), 1, 1 << 30);
    ON("param") strcpy(said, given);
    ON("asset") {
        struct blob content;
        struct text reason = asset("nothing", &content);
        if (reason.length > 0) return (struct outcome){.type = FAILED, .failed = reason};
    }
    ON("loop") for (volatile int forever = 1; forever;) {}
    if (strcmp(said, word) != 0) puts(said);
    ((struct field *)item.fields.first)->value.text = text_of(said);
    return (struct outcome){.type = KEEP, .keep = item};
}
