/* Interface of a Penstock stage in C: the types of the contract (guest-sdk/wit/stage.wit), as they cross the boundary.
 *
 * For 32-bit WebAssembly a C struct lies in memory as the component model lays out a record, and a tag followed by a union as it
 * lays out a variant; so nothing is converted. All memory comes from one arena, which is emptied after the runner has copied the
 * results of a call: allocate with `allocate`, free nothing, and keep no pointer into the arena from one call to the next. */
#ifndef PENSTOCK_H
#define PENSTOCK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* UTF-8, without a zero at the end. */
struct text { const char *bytes; size_t length; };
struct blob { const uint8_t *bytes; size_t length; };

/* Element types, named as in NumPy and PyTorch. */
enum dtype { BOOLEAN, UINT8, INT8, INT16, UINT16, INT32, INT64, FLOAT16, BFLOAT16, FLOAT32, FLOAT64 };

/* `data` has (product of the shape) x (element size) bytes, little-endian, the last dimension fastest. */
struct tensor {
    uint8_t dtype;
    struct { const uint32_t *sizes; size_t count; } shape;
    struct blob data;
};

enum value_type { BLOB, TEXT, INT, REAL, TENSOR };
struct value {
    uint8_t type;
    union { struct blob blob; struct text text; int64_t whole; double real; struct tensor tensor; };
};

struct field { struct text name; struct value value; };
struct fields { struct field *first; size_t count; };

/* One sample. `seed` is the seed of all its randomness. */
struct item { struct text key; uint64_t seed; struct fields fields; };
struct items { struct item *first; size_t count; };

enum outcome_type { KEEP, DROP, MANY, HELD, FAILED };
struct outcome {
    uint8_t type;
    union { struct item keep; struct items many; struct text failed; };
};

_Static_assert(sizeof(struct tensor) == 20 && sizeof(struct value) == 32 && sizeof(struct field) == 40, "as in the contract");
_Static_assert(sizeof(struct item) == 24 && sizeof(struct outcome) == 32, "as in the contract");

/* Defined by the stage. `set_up` is called once, before anything else; it returns an error message if the params
 * (JSON) are invalid, and an empty text otherwise. `process` returns the outcome of one item. */
struct text set_up(struct text params);
struct outcome process(struct item item);

/* Defined by penstock.c. Memory for one call, aligned to 8 and not zeroed; traps if there is not enough. */
void *allocate(size_t bytes);
/* Field of that name and type; NULL if the item has none. */
const struct value *find(const struct item *item, const char *name, enum value_type type);
/* Returns whether the bytes are UTF-8, which the runner requires of a text. */
bool is_utf8(struct blob bytes);
/* Value of a param as the document has it in JSON, e.g. `20`, `0.5` or `"crop"`, which `strtod` and others read as they are; empty if
 * the document does not set it. The runner has checked it against the schema in the manifest. */
struct text param(struct text params, const char *name);
/* Formats a message: every `%` of the pattern is replaced by the next number. */
struct text message(const char *pattern, uint32_t first, uint32_t second);
/* Text from a C string with static lifetime. */
struct text text_of(const char *zero_terminated);

enum level { DEBUG, INFO, WARN, ERROR };
/* Writes a line to the run's log. */
void write_log(enum level level, struct text line);
/* Adds to a counter that the manifest declares. */
void count(const char *counter, double amount);
/* Sets `content` to a file that the document names for this stage; returns an error message if there is none, and an empty text
 * otherwise. The content lies in the arena: copy what later calls need. */
struct text asset(const char *name, struct blob *content);
/* Memory that the instance may have, in bytes: `memory_mib` of the stage. What needs more is better refused than tried. */
uint64_t memory_limit(void);

#endif
