//! The access modes of a pod's claims: may others use its volumes at the same time?
//!
//! They are read for the few pods on nodes that are being evicted on the word of a taint that proves nothing.

use futures::future::try_join_all;
use kube::Client;
use salvor_recovery::eviction::{Access, Claim};
use serde::Deserialize;

use crate::{
    live,
    wire::{Nothing, Object, read},
};

/// Claims of one pod that are read, all at once: a second look must be over within a second. A pod that has more is taken to have
/// one for a single node among them.
pub(super) const MOST_CLAIMS: usize = 16;
/// Access modes by which pods on several nodes may use a volume at once.
const FOR_MANY: [&str; 2] = ["ReadWriteMany", "ReadOnlyMany"];

type ClaimWire = Object<ClaimSpec, Nothing>;

#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct ClaimSpec {
    access_modes: Vec<String>,
}

/// Reads claims; the first of them that is not for many settles it.
pub(crate) async fn read_access(client: &Client, claims: &[Claim]) -> kube::Result<Access> {
    let all = try_join_all(claims.iter().map(|claim| read_claim(client, claim))).await?;
    Ok(all.into_iter().find(|access| *access != Access::Many).unwrap_or(Access::Many))
}

async fn read_claim(client: &Client, claim: &Claim) -> kube::Result<Access> {
    let Claim { namespace, name } = claim;
    let path = format!("/api/v1/namespaces/{namespace}/persistentvolumeclaims/{name}");
    let Some(text) = live::get(client, &path).await? else {
        return Ok(Access::Unreadable(format!("claim {claim} does not exist")));
    };
    let modes = read::<ClaimWire>(&text)?.spec.access_modes;
    if modes.is_empty() {
        return Ok(Access::Once(format!("claim {claim} is without an access mode")));
    }
    let is_for_many = modes.iter().all(|mode| FOR_MANY.contains(&mode.as_str()));
    Ok(if is_for_many {
        Access::Many
    } else {
        Access::Once(format!("claim {claim} is {}", modes.join(", ")))
    })
}

/// The same for somebody who takes whatever there is to know.
pub(crate) async fn read_access_as_far_as_can_be(client: &Client, claims: &[Claim]) -> Access {
    let unreadable = |error| Access::Unreadable(format!("a claim cannot be read: {}", live::brief(&error)));
    read_access(client, claims).await.unwrap_or_else(unreadable)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::fake_api::{Answer, FakeApi};

    #[tokio::test(start_paused = true)]
    async fn a_claim_is_for_many_only_if_all_its_modes_are() {
        let api = FakeApi::new(|asked| {
            let name = asked.path.rsplit('/').next().unwrap_or_default();
            let modes = |modes: &[&str]| {
                Answer::Json(
                    200,
                    json!({
                        "metadata": {"name": name, "uid": "u", "resourceVersion": "1"}, "spec": {"accessModes": modes},
                    }),
                )
            };
            match name {
                "once" => modes(&["ReadWriteOnce"]),
                "pod" => modes(&["ReadWriteOncePod"]),
                "many" => modes(&["ReadWriteMany"]),
                "read" => modes(&["ReadOnlyMany"]),
                "both" => modes(&["ReadWriteMany", "ReadWriteOnce"]),
                "none" => modes(&[]),
                "new" => modes(&["ReadWriteWhenever"]),
                "forbidden" => Answer::Refused(403, "not yours"),
                _ => Answer::Refused(404, "not found"),
            }
        });
        let claims = |names: &[&str]| -> Vec<Claim> {
            names.iter().map(|name| Claim { namespace: "ns".into(), name: (*name).into() }).collect()
        };
        let once = |text: &str| Access::Once(text.into());
        let unreadable = |text: &str| Access::Unreadable(text.into());
        let cases = [
            (vec![], Access::Many),
            (vec!["many", "read"], Access::Many),
            (vec!["many", "once", "gone"], once("claim ns/once is ReadWriteOnce")),
            (vec!["pod"], once("claim ns/pod is ReadWriteOncePod")),
            (vec!["both"], once("claim ns/both is ReadWriteMany, ReadWriteOnce")),
            (vec!["none"], once("claim ns/none is without an access mode")),
            (vec!["new"], once("claim ns/new is ReadWriteWhenever")),
            (vec!["gone"], unreadable("claim ns/gone does not exist")),
            (vec!["many", "forbidden"], unreadable("a claim cannot be read: not yours (403)")),
        ];
        for (names, expected) in cases {
            assert_eq!(
                read_access_as_far_as_can_be(&api.client, &claims(&names)).await,
                expected,
                "{names:?}"
            );
        }
        assert!(read_access(&api.client, &claims(&["forbidden"])).await.is_err());
    }
}
