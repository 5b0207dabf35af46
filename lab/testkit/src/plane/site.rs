//! The site of a test: a real control plane, or the embedded one. Running the same test on both shows that the embedded
//! one behaves like the real one.

use std::sync::Arc;

use super::accounting::Accounting;
use super::arena::{self, Arena};
use super::embedded::EmbeddedPlane;
use super::part::Part;
use super::{Builder, ControlPlane};
use crate::access::Access;
use crate::network::proxy::Proxy;
use crate::programs::kubectl::Kubectl;

/// The variable that selects the site: `real`, `embedded`, or unset for both.
const VARIABLE: &str = "SALVOR_CLUSTER";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Site {
    /// kube-apiserver and the other real programs.
    Real,
    /// The cluster in this process.
    Embedded,
}

impl Site {
    /// True if tests on this site are to run: `SALVOR_CLUSTER` is `real` or `embedded`, or not set for both.
    ///
    /// # Panics
    /// If the variable has another value.
    pub fn is_chosen(self) -> bool {
        let chosen = match std::env::var(VARIABLE).unwrap_or_default().as_str() {
            "" | "both" => true,
            "real" => self == Self::Real,
            "embedded" => self == Self::Embedded,
            other => panic!("{VARIABLE} is {other:?}; it must be real, embedded or both"),
        };
        if !chosen {
            eprintln!("not played on this site: {VARIABLE} says so");
        }
        chosen
    }

    /// An arena for one test, with all controllers: on the shared control plane, or on its own embedded cluster.
    ///
    /// # Panics
    /// If it cannot be opened.
    pub async fn arena(self, name: &str) -> Arena<'static> {
        match self {
            Self::Real => arena::arena(name).await,
            Self::Embedded => Arena::embedded(Arc::new(EmbeddedPlane::start(true).await), name).await,
        }
    }

    /// An API server for one test, without any controller.
    ///
    /// # Panics
    /// If it cannot be started.
    pub async fn api_server(self) -> Plane {
        match self {
            Self::Real => real(ControlPlane::builder()).await,
            Self::Embedded => Plane::Embedded(Arc::new(EmbeddedPlane::start(false).await)),
        }
    }

    /// A control plane for one test, with all controllers.
    ///
    /// # Panics
    /// If it cannot be started.
    pub async fn control_plane(self) -> Plane {
        match self {
            Self::Real => {
                real(ControlPlane::builder().with(Part::ControllerManager).with(Part::Scheduler)).await
            }
            Self::Embedded => Plane::Embedded(Arc::new(EmbeddedPlane::start(true).await)),
        }
    }
}

async fn real(plane: Builder) -> Plane {
    match plane.start().await {
        Ok(plane) => Plane::Real(Box::new(plane)),
        Err(error) => panic!("the control plane does not start: {error}"),
    }
}

#[derive(Debug)]
pub enum Plane {
    Real(Box<ControlPlane>),
    Embedded(Arc<EmbeddedPlane>),
}

impl Plane {
    /// Access with all rights.
    pub fn admin(&self) -> Access {
        match self {
            Self::Real(plane) => plane.admin(),
            Self::Embedded(plane) => plane.admin(),
        }
    }

    /// An arena on it, with its own namespace and zone.
    ///
    /// # Panics
    /// If its namespace cannot be created.
    pub async fn arena(&self, name: &str) -> Arena<'_> {
        match self {
            Self::Real(plane) => plane.arena(name).await,
            Self::Embedded(plane) => Arena::embedded(Arc::clone(plane), name).await,
        }
    }

    /// The real kubectl, as the admin.
    pub fn kubectl(&self) -> Kubectl {
        match self {
            Self::Real(plane) => plane.kubectl(),
            Self::Embedded(plane) => plane.kubectl(),
        }
    }

    /// Counts the requests that its API server answers.
    pub fn accounting(&self) -> Accounting {
        match self {
            Self::Real(plane) => plane.accounting(),
            Self::Embedded(plane) => plane.accounting(),
        }
    }

    /// A proxy in front of it that can simulate network faults.
    pub async fn proxy(&self) -> std::io::Result<Proxy> {
        match self {
            Self::Real(plane) => plane.proxy().await,
            Self::Embedded(plane) => plane.proxy().await,
        }
    }

    pub async fn back_up(&self) -> Backup {
        match self {
            Self::Real(plane) => {
                plane.back_up().await.unwrap_or_else(|error| panic!("no backup can be made: {error}"));
                Backup(None)
            }
            Self::Embedded(plane) => Backup(Some(plane.cluster().api().back_up())),
        }
    }

    /// Goes back to a backup, revisions included, as when etcd is restored. For a real control plane only the last
    /// backup can be restored.
    ///
    /// # Panics
    /// If that fails.
    pub async fn restore(&self, backup: &Backup) {
        match (self, backup) {
            (Self::Real(plane), _) => {
                plane
                    .restore()
                    .await
                    .unwrap_or_else(|error| panic!("the backup cannot be restored: {error}"));
            }
            (Self::Embedded(plane), Backup(Some(backup))) => plane.cluster().api().restore(backup),
            (Self::Embedded(_), Backup(None)) => panic!("this is a backup of another plane"),
        }
    }

    /// The real control plane.
    ///
    /// # Panics
    /// If it is the embedded one.
    pub fn real(&self) -> &ControlPlane {
        match self {
            Self::Real(plane) => plane,
            Self::Embedded(_) => panic!("this test needs a real control plane"),
        }
    }
}

/// A backup of a control plane. A real one keeps it beside its data.
#[derive(Debug)]
pub struct Backup(Option<salvor_apiserver::Backup>);

impl From<ControlPlane> for Plane {
    fn from(plane: ControlPlane) -> Self {
        Self::Real(Box::new(plane))
    }
}

/// Runs tests on both sites: each function of a [`Site`] becomes a module with one test per site.
///
/// ```
/// use salvor_testkit::Site;
///
/// async fn a_corner_has_a_namespace(site: Site) {
///     assert!(site.arena("corner").await.namespace().starts_with("corner"));
/// }
///
/// salvor_testkit::on_both!(a_corner_has_a_namespace);
/// ```
#[macro_export]
macro_rules! on_both {
    ($($name:ident),* $(,)?) => {
        $(
            mod $name {
                #[tokio::test]
                async fn real() {
                    if $crate::Site::Real.is_chosen() {
                        super::$name($crate::Site::Real).await;
                    }
                }

                #[tokio::test]
                async fn embedded() {
                    if $crate::Site::Embedded.is_chosen() {
                        super::$name($crate::Site::Embedded).await;
                    }
                }
            }
        )*
    };
}
