//! The settings of admission.

use salvor_api::config::{AppWrapperSettings, WrappedKind};

use crate::appwrapper::podsets::TemplateKind;

/// The part of the configuration that matters for admission.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AdmissionPolicy {
    /// Whether the rights of users are checked.
    pub check_users: bool,
    /// The queue of AppWrappers that name none; empty for none.
    pub default_queue: String,
    /// The kinds that may be wrapped.
    pub kinds: Vec<WrappedKind>,
    /// The kinds that may be wrapped where there are no webhooks.
    pub kinds_without_webhooks: Vec<WrappedKind>,
}

impl AdmissionPolicy {
    pub fn new(settings: &AppWrapperSettings) -> Self {
        Self {
            check_users: settings.user_rbac_admission_check,
            default_queue: settings.default_queue_name.clone(),
            kinds: settings.kinds(),
            kinds_without_webhooks: settings.kinds_without_webhooks(),
        }
    }

    pub(super) fn kind(&self, template: TemplateKind<'_>) -> Option<&WrappedKind> {
        self.kinds.iter().find(|kind| kind.is(template.group, template.kind))
    }
}
