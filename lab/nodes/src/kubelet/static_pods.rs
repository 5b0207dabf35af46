//! Static pods: a node starts them from its own disk, and the API holds mirrors of them.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Toleration;

use super::Kubelet;
use super::worker::{Origin, Volumes, Worker};
use crate::{
    pod::{MIRROR_ANNOTATION, PodView},
    runtime::PodRuntime,
    status::Conditions,
};

impl Kubelet {
    pub(super) fn start_static_pods(&mut self, now: Timestamp) {
        for mut manifest in self.profile.static_pods.clone() {
            let name =
                format!("{}-{}", manifest.metadata.name.as_deref().unwrap_or("static"), self.profile.name);
            let hash = format!("static-{name}");
            manifest.metadata.name = Some(name.clone());
            manifest.metadata.namespace.get_or_insert_with(|| "default".to_owned());
            let annotations = manifest.metadata.annotations.get_or_insert_default();
            annotations.insert(MIRROR_ANNOTATION.to_owned(), hash.clone());
            annotations.insert("kubernetes.io/config.source".to_owned(), "file".to_owned());
            annotations.insert("kubernetes.io/config.hash".to_owned(), hash.clone());
            let spec = manifest.spec.get_or_insert_default();
            spec.node_name = Some(self.profile.name.clone());
            spec.tolerations.get_or_insert_default().push(Toleration {
                operator: Some("Exists".to_owned()),
                effect: Some("NoExecute".to_owned()),
                ..Toleration::default()
            });
            let mut identified = manifest.clone();
            identified.metadata.uid = Some(hash);
            let Some(view) = PodView::of(&identified) else {
                continue;
            };
            let pod_ip = self.assign_ip();
            let worker = Worker {
                api: None,
                runtime: Some(PodRuntime::new(&view.id, &view.spec, now)),
                spec: view.spec,
                origin: Origin::Static { manifest: Box::new(manifest) },
                refusal: None,
                volumes: Volumes::Known(Vec::new()),
                conditions: Conditions::default(),
                start_time: now,
                pod_ip,
                acknowledged: None,
                removal_asked: false,
                wake: None,
            };
            self.workers.insert(name, worker);
        }
    }
}
