//! Views: types that hold a part of an object.

/// Gives a type with an `ObjectMeta` in `metadata` the traits that calls and informers need: those `of` a whole kind, or of one that
/// `k8s_openapi` does not have.
#[macro_export]
macro_rules! view {
    ($view:ty, of $kind:ty) => {
        $crate::view!(
            $view,
            <$kind as ::k8s_openapi::Resource>::API_VERSION,
            <$kind as ::k8s_openapi::Resource>::GROUP,
            <$kind as ::k8s_openapi::Resource>::VERSION,
            <$kind as ::k8s_openapi::Resource>::KIND,
            <$kind as ::k8s_openapi::Resource>::URL_PATH_SEGMENT,
            <$kind as ::k8s_openapi::Resource>::Scope
        );
    };
    ($view:ty, $api_version:expr, $group:expr, $version:expr, $kind:expr, $plural:expr, $scope:ty) => {
        impl ::k8s_openapi::Resource for $view {
            const API_VERSION: &'static str = $api_version;
            const GROUP: &'static str = $group;
            const KIND: &'static str = $kind;
            const VERSION: &'static str = $version;
            const URL_PATH_SEGMENT: &'static str = $plural;
            type Scope = $scope;
        }

        impl ::k8s_openapi::Metadata for $view {
            type Ty = ::k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
            fn metadata(&self) -> &Self::Ty {
                &self.metadata
            }
            fn metadata_mut(&mut self) -> &mut Self::Ty {
                &mut self.metadata
            }
        }
    };
}
