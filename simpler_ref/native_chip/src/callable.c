/* The blob, little-endian, only children aligned, nothing left out:
 *
 *     "SIMPCHIP", u32 version = 2
 *     signature: u32 count, u32 direction[count]
 *     text func_name, text config_name: u32 length, bytes
 *     binary: u64 length, bytes
 *     u32 children, each: u32 func_id, zeros up to a multiple of 64, signature, binary
 *
 * callables.py reads and writes the same, with the same limits. */
#include "callable.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "shim.h"

enum { VERSION = 2, CHILD_ALIGN = 64 };

typedef struct Reader {
    const unsigned char *bytes;
    uint64_t size;
    uint64_t at;
    bool failed; /* once it is, everything reads as zero */
    char *why;
    size_t room;
} Reader;

typedef struct Binary {
    const unsigned char *bytes;
    uint64_t size;
} Binary;

static void __attribute__((format(printf, 2, 3))) complain(Reader *in, const char *format, ...)
{
    va_list values;
    if (in->failed)
        return;
    in->failed = true;
    va_start(values, format);
    vsnprintf(in->why, in->room, format, values);
    va_end(values);
}

static const unsigned char *take(Reader *in, uint64_t size, const char *what)
{
    static const unsigned char nothing[8];
    if (!in->failed && size > in->size - in->at)
        complain(in, "it ends at byte %llu, within its %s", (unsigned long long)in->size, what);
    if (in->failed)
        return nothing;
    const unsigned char *bytes = in->bytes + in->at;
    in->at += size;
    return bytes;
}

static uint32_t take_u32(Reader *in, const char *what)
{
    uint32_t value;
    memcpy(&value, take(in, sizeof value, what), sizeof value);
    return value;
}

static Signature take_signature(Reader *in, int32_t max_tensors, int32_t max_scalars)
{
    Signature signature = {0};
    uint32_t count = take_u32(in, "signature");
    if (count > (uint32_t)(max_tensors + max_scalars))
        complain(in, "its signature has %u arguments; at most %d tensors and %d scalars are allowed",
                 count, max_tensors, max_scalars);
    for (uint32_t i = 0; i < count && !in->failed; i++) {
        uint32_t direction = take_u32(in, "signature");
        if (direction > SIMPLER_INOUT)
            complain(in, "argument %u has direction %u; the directions are 0 to 3", i, direction);
        else if (direction == SIMPLER_SCALAR)
            signature.scalars++;
        else
            signature.directions[signature.tensors++] = (uint8_t)direction;
    }
    if (signature.tensors > max_tensors || signature.scalars > max_scalars)
        complain(in, "its signature has %d tensors and %d scalars; at most %d and %d are allowed",
                 signature.tensors, signature.scalars, max_tensors, max_scalars);
    return signature;
}

static void take_text(Reader *in, const char *what, char text[MAX_NAME + 1])
{
    uint32_t length = take_u32(in, what);
    memset(text, 0, MAX_NAME + 1);
    if (length > MAX_NAME)
        complain(in, "its %s has %u bytes; at most %d are allowed", what, length, MAX_NAME);
    const unsigned char *bytes = take(in, length, what);
    for (uint32_t i = 0; i < length && !in->failed; i++) {
        if (bytes[i] < 0x21 || bytes[i] > 0x7e)
            complain(in, "its %s has the byte 0x%02x; printable ASCII without spaces is needed",
                     what, bytes[i]);
        text[i] = (char)bytes[i];
    }
}

static Binary take_binary(Reader *in)
{
    Binary binary = {0};
    memcpy(&binary.size, take(in, sizeof binary.size, "binary"), sizeof binary.size);
    if (binary.size == 0)
        complain(in, "a binary in it is empty");
    binary.bytes = take(in, binary.size, "binary");
    return binary;
}

static void take_child(Reader *in, Callable *callable, Binary *binary)
{
    uint32_t func_id = take_u32(in, "children");
    const uint64_t size = -in->at % CHILD_ALIGN;
    const unsigned char *bytes = take(in, size, "children");
    for (uint64_t i = 0; i < size && !in->failed; i++)
        if (bytes[i] != 0)
            complain(in, "what aligns a child in it is not zero");
    if (func_id > INT32_MAX)
        complain(in, "func_id %u is above %d", func_id, INT32_MAX);
    else if (!in->failed && callable_core(callable, (int32_t)func_id) != NULL)
        complain(in, "func_id %u is there twice", func_id);
    Core core = {.func_id = (int32_t)func_id};
    core.signature = take_signature(in, SIMPLER_CORE_MAX_TENSOR_ARGS, SIMPLER_CORE_MAX_SCALAR_ARGS);
    if (core.signature.tensors + core.signature.scalars == 0)
        memset(core.signature.directions, SIMPLER_INOUT, SIMPLER_CORE_MAX_TENSOR_ARGS);
    *binary = take_binary(in);
    callable->cores[callable->core_count++] = core;
}

/* Read the whole blob; `binaries` gets the function's own and then the children's.
 * Rule CHIP-BLOB-1 */
static void take_all(Reader *in, Callable *callable, Binary **binaries)
{
    char config_name[MAX_NAME + 1];
    if (memcmp(take(in, 8, "head"), "SIMPCHIP", 8) != 0)
        complain(in, "it does not begin with SIMPCHIP");
    uint32_t version = take_u32(in, "head");
    if (version != VERSION)
        complain(in, "it has version %u; this is version %d", version, VERSION);
    callable->signature =
        take_signature(in, SIMPLER_CHIP_MAX_TENSOR_ARGS, SIMPLER_CHIP_MAX_SCALAR_ARGS);
    take_text(in, "func_name", callable->name);
    if (callable->name[0] == '\0')
        complain(in, "its func_name is empty");
    take_text(in, "config_name", config_name);
    Binary own = take_binary(in);
    uint32_t children = take_u32(in, "children");
    if (children > MAX_CHILDREN)
        complain(in, "it has %u children; at most %d are allowed", children, MAX_CHILDREN);
    if (in->failed)
        return;
    callable->cores = calloc(children + 1, sizeof *callable->cores);
    *binaries = calloc(children + 1, sizeof **binaries);
    if (callable->cores == NULL || *binaries == NULL) {
        complain(in, "no memory");
        return;
    }
    (*binaries)[0] = own;
    for (uint32_t i = 0; i < children && !in->failed; i++)
        take_child(in, callable, &(*binaries)[i + 1]);
    if (in->at != in->size)
        complain(in, "%llu bytes follow its end", (unsigned long long)(in->size - in->at));
}

/* Load one binary and find its symbol.
 * Rule CHIP-LOAD-1 */
static bool link_one(const Binary *binary, const char *name, void **library, void **symbol,
                     char *why, size_t room)
{
    *library = image_load(binary->bytes, binary->size, why, room);
    if (*library == NULL)
        return false;
    *symbol = dlsym(*library, name);
    if (*symbol == NULL)
        snprintf(why, room, "it does not export %s", name);
    return *symbol != NULL;
}

static int32_t link_all(Callable *callable, const Binary *binaries, char *why, size_t room)
{
    char text[640];
    void *symbol = NULL;
    if (!link_one(&binaries[0], callable->name, &callable->library, &symbol, text, sizeof text)) {
        snprintf(why, room, "the binary of %s cannot be loaded: %s", callable->name, text);
        return PTO2_E_LOAD;
    }
    *(void **)&callable->entry = symbol;
    for (int32_t i = 0; i < callable->core_count; i++) {
        Core *core = &callable->cores[i];
        if (!link_one(&binaries[i + 1], "simpler_kernel", &core->library, &symbol, text,
                      sizeof text)) {
            snprintf(why, room, "the kernel with func_id %d of %s cannot be loaded: %s",
                     core->func_id, callable->name, text);
            return PTO2_E_LOAD;
        }
        *(void **)&core->kernel = symbol;
    }
    return PTO2_OK;
}

int32_t callable_open(const void *blob, uint64_t size, Callable **made, char *why, size_t room)
{
    Reader in = {.bytes = blob, .size = size, .why = why, .room = room};
    Binary *binaries = NULL;
    Callable *callable = calloc(1, sizeof *callable);
    int32_t status = PTO2_E_BLOB;
    if (callable == NULL) {
        snprintf(why, room, "no memory");
        return PTO2_E_SYSTEM;
    }
    take_all(&in, callable, &binaries);
    if (!in.failed)
        status = link_all(callable, binaries, why, room);
    free(binaries);
    if (status == PTO2_OK)
        *made = callable;
    else
        callable_close(callable);
    return status;
}

void callable_close(Callable *callable)
{
    for (int32_t i = 0; i < callable->core_count; i++)
        if (callable->cores[i].library != NULL)
            dlclose(callable->cores[i].library);
    if (callable->library != NULL)
        dlclose(callable->library);
    free(callable->cores);
    free(callable);
}

const Core *callable_core(const Callable *callable, int32_t func_id)
{
    for (int32_t i = 0; i < callable->core_count; i++)
        if (callable->cores[i].func_id == func_id)
            return &callable->cores[i];
    return NULL;
}
