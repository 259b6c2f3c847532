//! Several authorizers as one, and the text of a refusal.

use std::sync::Arc;

use sampan_api::Status;
use sampan_api::status::Details;
use sampan_api::user::well_known;

use crate::request::{Attributes, Authorizer, Decision};

/// Members of `system:masters` may do everything, whatever the roles say.
pub struct Masters;

impl Authorizer for Masters {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        if attributes.user.in_group(well_known::MASTERS) {
            Decision::Allow(String::new())
        } else {
            Decision::NoOpinion(String::new())
        }
    }
}

/// Asks each in turn; the first that has an opinion decides.
pub struct Union(pub Vec<Arc<dyn Authorizer>>);

impl Authorizer for Union {
    fn authorize(&self, attributes: &Attributes<'_>) -> Decision {
        let mut reasons = Vec::new();
        for authorizer in &self.0 {
            match authorizer.authorize(attributes) {
                Decision::NoOpinion(reason) if reason.is_empty() => {}
                Decision::NoOpinion(reason) => reasons.push(reason),
                decided => return decided,
            }
        }
        Decision::NoOpinion(reasons.join("\n"))
    }
}

/// `Ok` if allowed, else the refusal.
pub fn check(authorizer: &dyn Authorizer, attributes: &Attributes<'_>) -> Result<(), Status> {
    match authorizer.authorize(attributes) {
        Decision::Allow(_) => Ok(()),
        Decision::Deny(reason) | Decision::NoOpinion(reason) => Err(refusal(attributes, &reason)),
    }
}

/// What a user is told who may not do what was asked.
pub fn refusal(attributes: &Attributes<'_>, reason: &str) -> Status {
    let mut why = sentence(attributes);
    if !reason.is_empty() {
        why.push_str(": ");
        why.push_str(reason);
    }
    match &attributes.resource {
        Some(resource) if !resource.resource.is_empty() => {
            Status::forbidden(resource.group, resource.resource, resource.name, &why)
        }
        _ => Status::new(sampan_api::Reason::Forbidden, format!("forbidden: {why}"))
            .with_details(Details::default()),
    }
}

fn sentence(attributes: &Attributes<'_>) -> String {
    let user = &attributes.user.username;
    let verb = attributes.verb;
    let Some(resource) = &attributes.resource else {
        return format!("User {user:?} cannot {verb} path {:?}", attributes.path);
    };
    let mut what = resource.resource.to_owned();
    if !resource.subresource.is_empty() {
        what = format!("{what}/{}", resource.subresource);
    }
    let place = if resource.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", resource.namespace)
    };
    format!(
        "User {user:?} cannot {verb} resource {what:?} in API group {:?} {place}",
        resource.group
    )
}

#[cfg(test)]
mod tests {
    use sampan_api::UserInfo;

    use super::*;
    use crate::request::ResourceAttributes;

    #[test]
    fn refusals_are_worded_like_upstream() {
        let user = UserInfo::authenticated("alice", &[]);
        let mut attributes = Attributes {
            user: &user,
            verb: "get",
            resource: None,
            path: "/metrics",
        };
        assert_eq!(
            refusal(&attributes, "").message,
            "forbidden: User \"alice\" cannot get path \"/metrics\""
        );
        attributes.resource = Some(ResourceAttributes {
            group: "apps",
            resource: "deployments",
            subresource: "scale",
            namespace: "x",
            name: "d",
            ..ResourceAttributes::default()
        });
        assert_eq!(
            refusal(&attributes, "no").message,
            "deployments.apps \"d\" is forbidden: User \"alice\" cannot get resource \
             \"deployments/scale\" in API group \"apps\" in the namespace \"x\": no"
        );
    }
}
