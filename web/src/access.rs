//! Access to the server: tokens, roles and sessions, and the checks of every request.

mod audit;
mod caller;
mod guard;
mod issued;
mod operator_token;
mod session;
mod tokens;
mod wrong;

pub(crate) use self::audit::{Guarded, Recorded};
pub use self::caller::Role;
pub(crate) use self::caller::{Caller, client};
pub(crate) use self::guard::{CODE_LIFETIME, RequestGuard, bearer, guard_request};
pub(crate) use self::operator_token::hexadecimal;
pub use self::operator_token::{OperatorToken, TokenError};
pub use self::tokens::{NamedToken, TokenFile};
pub(crate) use self::tokens::{Tokens, digest};
