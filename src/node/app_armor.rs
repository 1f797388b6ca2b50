//! The AppArmor profile of a container: which one it requests, which one it gets, and whether this machine has it.

use k8s_openapi::api::core::v1::{AppArmorProfile, Container, Pod};
use podwright_runtime::app_armor::{self, DEFAULT};

use super::{
    executor::{ActionError, Reason},
    spec::{PodExt, is_privileged},
};
use podwright_api::app_armor::{ANNOTATION, Profile};

/// Why a node cannot confine a Pod as requested.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AppArmorError {
    #[error("AppArmor is not enabled on the host")]
    Disabled,
    /// The profile behind `RuntimeDefault` and why it could not be loaded.
    #[error("the profile {DEFAULT} is not loaded: {0}")]
    NotLoaded(String),
    /// The prefix before the missing name.
    #[error("invalid empty AppArmor profile name: {0:?}")]
    EmptyName(String),
}

/// What a node can provide, or why it cannot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppArmor {
    /// Whether the kernel supports AppArmor at all.
    pub host: Result<(), AppArmorError>,
    /// Whether the `RuntimeDefault` profile is loaded.
    pub default: Result<(), AppArmorError>,
}

impl AppArmor {
    /// For a hollow node: everything is available.
    pub fn hollow() -> AppArmor {
        AppArmor { host: Ok(()), default: Ok(()) }
    }

    /// For a host whose kernel does not use AppArmor.
    pub fn disabled() -> AppArmor {
        AppArmor { host: Err(AppArmorError::Disabled), default: Err(AppArmorError::Disabled) }
    }

    /// This machine's support; loads the default profile if possible.
    pub async fn of_host() -> AppArmor {
        if !app_armor::is_enabled() {
            return AppArmor::disabled();
        }
        let default = match app_armor::load().await {
            Err(why) if app_armor::is_loaded(DEFAULT).unwrap_or(false) => {
                tracing::warn!("keeping the AppArmor profile {DEFAULT} that is already loaded: {why}");
                Ok(())
            }
            loaded => loaded.map_err(AppArmorError::NotLoaded),
        };
        match &default {
            Ok(()) => tracing::info!("containers run under the AppArmor profile {DEFAULT}"),
            Err(why) => tracing::warn!("containers run without an AppArmor profile unless they name one: {why}"),
        }
        AppArmor { host: Ok(()), default }
    }

    /// The name of the profile that a container gets. `sets`: whether its sandbox's shim can set profiles; shims of earlier
    /// releases cannot.
    ///
    /// # Errors
    ///
    /// It requests a profile that is not available, or the loaded profiles cannot be read.
    pub async fn provide(&self, pod: &Pod, container: &Container, sets: bool) -> Result<Option<String>, ActionError> {
        let failed = |why: String| {
            ActionError::new(Reason::CreateContainerError, format!("failed to generate apparmor spec opts: {why}"))
        };
        let unread = |e: std::io::Error| failed(format!("the list of profiles: {e}"));
        match self.decide(pod, container, sets) {
            Decision::Unconfined => Ok(None),
            Decision::Localhost(name) => match app_armor::is_loaded(name).map_err(unread)? {
                true => Ok(Some(name.to_owned())),
                false => Err(failed(format!("apparmor profile not found {name}"))),
            },
            Decision::Default => {
                // The profile may have been unloaded since, for example by aa-remove-unknown(8), as no file on disk defines it.
                if !app_armor::is_loaded(DEFAULT).map_err(unread)? {
                    app_armor::load().await.map_err(failed)?;
                }
                Ok(Some(DEFAULT.to_owned()))
            }
        }
    }

    /// The profile an admitted container runs under, as in containerd: containers that request none get the default profile if
    /// available, except privileged ones.
    pub fn decide<'a>(&self, pod: &'a Pod, container: &'a Container, sets: bool) -> Decision<'a> {
        match asked(pod, container) {
            Some(Profile::Unconfined) => Decision::Unconfined,
            Some(Profile::Localhost(name)) => Decision::Localhost(name),
            Some(Profile::RuntimeDefault) if !is_privileged(container) => Decision::Default,
            None if !is_privileged(container) && self.default.is_ok() && sets => Decision::Default,
            _ => Decision::Unconfined,
        }
    }

    /// Checks that the node provides what the Pod requests.
    ///
    /// # Errors
    ///
    /// The Pod must be confined, and the kernel cannot, the default profile is missing, or the profile's name is empty.
    pub fn admit(&self, pod: &Pod) -> Result<(), AppArmorError> {
        if !is_required(pod) {
            return Ok(());
        }
        self.host.clone()?;
        for part in pod.parts() {
            match asked(pod, &part.container) {
                Some(Profile::Localhost(name)) if name.trim().is_empty() => {
                    return Err(AppArmorError::EmptyName(format!("localhost/{name}")));
                }
                Some(Profile::RuntimeDefault) if !is_privileged(&part.container) => self.default.clone()?,
                _ => {}
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Decision<'a> {
    Unconfined,
    Default,
    /// A profile of the host.
    Localhost(&'a str),
}

/// Whether a Pod can only run where AppArmor is available.
fn is_required(pod: &Pod) -> bool {
    let of_pod = pod.spec().security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    let parts = pod.parts();
    let of_parts = parts.iter().filter_map(|p| p.container.security_context.as_ref()?.app_armor_profile.as_ref());
    let mut profiles = of_parts.chain(of_pod);
    let annotations = pod.metadata.annotations.iter().flatten();
    let mut annotated = annotations.filter(|(key, _)| key.starts_with(ANNOTATION)).map(|(_, value)| value.as_str());
    profiles.any(|profile| profile.type_ != "Unconfined") || annotated.any(|value| !matches!(value, "" | "unconfined"))
}

/// The profile a container requests. Follows upstream's `GetProfile`: the annotations of static Pods may lack the matching fields.
fn asked<'a>(pod: &'a Pod, container: &'a Container) -> Option<Profile<'a>> {
    let field = |profile: &'a AppArmorProfile| Profile::of_field(&profile.type_, profile.localhost_profile.as_deref());
    let own = container.security_context.as_ref().and_then(|c| c.app_armor_profile.as_ref());
    if let Some(own) = own {
        return field(own);
    }
    let annotated = || Profile::of_annotation(pod.annotation(&format!("{ANNOTATION}{}", container.name))?);
    let of_pod = || pod.spec().security_context.as_ref()?.app_armor_profile.as_ref().and_then(field);
    annotated().or_else(of_pod)
}
