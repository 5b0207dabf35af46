//! The admission webhooks of all enabled recoveries.

use salvor_api::config::Configuration;

use super::{Webhooks, recoveries};
use crate::webhooks::{HandlerContext, Registration, Webhook};

fn declared(configuration: &Configuration) -> Vec<Webhook> {
    of_recoveries(configuration).flat_map(|webhooks| (webhooks.declared)(configuration)).collect()
}

fn of_recoveries(configuration: &Configuration) -> impl Iterator<Item = &'static Webhooks> {
    recoveries()
        .filter(|entry| entry.off(configuration).is_none())
        .filter_map(|entry| entry.webhooks.as_ref())
}

pub(crate) fn registrations(
    configuration: &Configuration,
    handler_context: &HandlerContext,
) -> Vec<Registration> {
    of_recoveries(configuration)
        .flat_map(|webhooks| (webhooks.handlers)(configuration, handler_context))
        .collect()
}

/// The webhooks that are served and configured: none where webhooks are disabled, and none in a dry run, which must not
/// change or refuse what others create.
pub fn in_effect(configuration: &Configuration) -> Vec<Webhook> {
    if configuration.webhooks.enabled && !configuration.dry_run {
        declared(configuration)
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use kube::Client;

    use super::*;
    use crate::{time::Time, webhooks::Keyring};

    #[tokio::test]
    async fn what_is_declared_is_what_is_registered() {
        let configuration = Configuration::default();
        let client = Client::new(
            tower::service_fn(async |_: http::Request<kube::client::Body>| {
                Ok::<_, std::convert::Infallible>(http::Response::new(axum::body::Body::empty()))
            }),
            "default",
        );
        let handler_context = HandlerContext { client, time: Time::system(), keyring: Keyring::default() };
        let registered: Vec<_> = registrations(&configuration, &handler_context)
            .into_iter()
            .map(|registration| registration.webhook)
            .collect();
        assert_eq!(registered, declared(&configuration));
    }

    #[test]
    fn nothing_is_served_in_a_dry_run_or_where_webhooks_are_switched_off() {
        let mut configuration = Configuration { dry_run: true, ..Configuration::default() };
        assert_eq!(in_effect(&configuration), []);
        configuration.dry_run = false;
        configuration.webhooks.enabled = false;
        assert_eq!(in_effect(&configuration), []);
    }
}
