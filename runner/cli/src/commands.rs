pub(crate) mod check;
pub(crate) mod compile_module;
pub(crate) mod module;
pub(crate) mod run;
pub(crate) mod schema;
