pub(crate) mod check;
pub(crate) mod compile_module;
pub(crate) mod module;
pub(crate) mod new;
pub(crate) mod run;
pub(crate) mod schema;
pub(crate) mod test_stage;
