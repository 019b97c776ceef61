//! Settings that stages of all kinds have.

use crate::policy::{Capacity, Concurrency, FailureLimit, OnError, Order};
use crate::spec::Name;

/// Declares a stage whose tasks may run concurrently and may fail: its own fields, then the fields shared by all such stages.
/// (serde's `flatten` could share the fields, but cannot reject unknown ones.)
macro_rules! tasked_stage {
    ($(#[$doc:meta])* $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize, schemars::JsonSchema)]
        #[serde(deny_unknown_fields)]
        pub struct $name {
            $($(#[$field_doc])* pub $field: $type,)*
            /// Name of the stage in statistics; its kind, or the name of its module, when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub name: Option<$crate::spec::Name>,
            /// Maximum number of items in the queue after the stage.
            #[serde(default)]
            pub queue: $crate::policy::Capacity,
            /// Number of tasks that may run at a time.
            #[serde(default)]
            pub concurrency: $crate::policy::Concurrency,
            /// Order in which results are passed on.
            #[serde(default)]
            pub order: $crate::policy::Order,
            /// Handling of a sample that failed.
            #[serde(default)]
            pub on_error: $crate::policy::OnError,
            /// Limit of failures in this stage, beyond which the run fails; no limit when missing.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub max_failures: Option<$crate::policy::FailureLimit>,
        }

        impl $name {
            /// Handles every failed sample as `on_error` says, without a limit.
            fn fail_by(&mut self, on_error: $crate::policy::OnError) {
                (self.on_error, self.max_failures) = (on_error, None);
            }

            fn all_settings(&self) -> $crate::kinds::settings::Settings<'_> {
                $crate::kinds::settings::Settings {
                    name: self.name.as_ref(),
                    queue: self.queue,
                    concurrency: self.concurrency,
                    order: self.order,
                    on_error: self.on_error,
                    max_failures: self.max_failures,
                }
            }
        }
    };
}

pub(crate) use tasked_stage;

/// Settings that stages of all kinds have.
pub(crate) struct Settings<'a> {
    pub(crate) name: Option<&'a Name>,
    pub(crate) queue: Capacity,
    pub(crate) concurrency: Concurrency,
    pub(crate) order: Order,
    pub(crate) on_error: OnError,
    pub(crate) max_failures: Option<FailureLimit>,
}

impl<'a> Settings<'a> {
    /// Settings of a stage that runs in one loop, keeps the order and cannot fail.
    pub(crate) fn of_moving(name: Option<&'a Name>, queue: Capacity) -> Self {
        Self {
            name,
            queue,
            concurrency: Concurrency::default(),
            order: Order::Input,
            on_error: OnError::Skip,
            max_failures: None,
        }
    }
}
