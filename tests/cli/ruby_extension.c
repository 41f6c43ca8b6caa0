#include <ruby.h>
#include <stdlib.h>
#include <string.h>
struct blocks { size_t count; char **all; };
static void release(void *p) { struct blocks *b = p; for (size_t n = 0; n < b->count; n++) n % 2 ? xfree(b->all[n]) : free(b->all[n]); xfree(b->all); xfree(b); }
static size_t size(const void *p) { return ((const struct blocks *)p)->count * 300; }
static const rb_data_type_t type = {"blocks", {0, release, size}, 0, 0, RUBY_TYPED_FREE_IMMEDIATELY};
static VALUE make(VALUE self, VALUE count) {
    struct blocks *b; VALUE v = TypedData_Make_Struct(self, struct blocks, &type, b);
    b->count = NUM2SIZET(count); b->all = ALLOC_N(char *, b->count);
    for (size_t n = 0; n < b->count; n++) { b->all[n] = n % 2 ? ALLOC_N(char, n % 600 + 1) : malloc(n % 600 + 1); memset(b->all[n], (int)n, n % 600 + 1); }
    return v;
}
static VALUE grow(VALUE self) { struct blocks *b; TypedData_Get_Struct(self, struct blocks, &type, b); for (size_t n = 0; n < b->count; n++) { size_t s = n % 600 + 1; if (n % 2) REALLOC_N(b->all[n], char, s * 3); else b->all[n] = realloc(b->all[n], s * 3); if (b->all[n][s - 1] != (char)n) rb_raise(rb_eRuntimeError, "damaged"); } return self; }
static VALUE buffer(VALUE self, VALUE n) { VALUE keep; char *p = ALLOCV_N(char, keep, NUM2SIZET(n)); memset(p, 'q', NUM2SIZET(n)); VALUE s = rb_str_new(p, NUM2LONG(n)); ALLOCV_END(keep); return s; }
static VALUE aligned(VALUE self) { void *p = 0; if (posix_memalign(&p, 65536, 65536)) rb_sys_fail("posix_memalign"); VALUE r = (uintptr_t)p % 65536 ? Qfalse : Qtrue; free(p); return r; }
void Init_blocks(void) { VALUE c = rb_define_class("Blocks", rb_cObject); rb_undef_alloc_func(c); rb_define_singleton_method(c, "make", make, 1); rb_define_method(c, "grow", grow, 0); rb_define_singleton_method(c, "buffer", buffer, 1); rb_define_singleton_method(c, "aligned", aligned, 0); }
