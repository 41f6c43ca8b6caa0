//! stub
pub(crate) fn bench(_c: &crate::Context, _a: crate::cli::BenchArguments, _j: bool) -> u8 {
    0
}
