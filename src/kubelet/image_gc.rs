//! Images that nobody uses are removed when the disk fills up, the longest unused first.
//!
//! Images from archives are spared, as are pinned ones: they cannot be had again. Upstream counterpart:
//! `images/image_gc_manager`.

use crate::machine::Disk;
use crate::node::node_reference;
use crate::runtime::images::Imported;
use crate::settings::{ImageGc, Settings};
use crate::text;
use sampan_client::Recorder;
use sampan_cri::runtime::v1::{
    Image, ImageSpec, ListContainersRequest, ListImagesRequest, RemoveImageRequest,
};
use sampan_cri::{Error, Images, Runtime};
use sampan_util::Shutdown;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::time::Instant;

/// Between two looks at the disk, which are cheap.
const LOOK: Duration = Duration::from_secs(30);
/// Between two looks at which images are used.
const LISTING: Duration = Duration::from_secs(300);

#[derive(Debug, Clone, Copy)]
struct Record {
    first_seen: Instant,
    last_used: Option<Instant>,
    size: u64,
}

/// The images to remove, in this order, until enough is free; `wanted` bytes or all that may go.
fn choose(
    records: &HashMap<String, Record>,
    spared: &HashSet<String>,
    policy: &ImageGc,
    now: Instant,
    wanted: u64,
) -> Vec<String> {
    let mut candidates: Vec<(&String, &Record)> = records
        .iter()
        .filter(|(id, record)| {
            let is_old = now.duration_since(record.first_seen) >= policy.minimum_age;
            is_old && !spared.contains(*id)
        })
        .collect();
    candidates.sort_by_key(|(id, r)| (r.last_used, r.first_seen, (*id).clone()));
    let mut left = wanted;
    let mut chosen = Vec::new();
    for (id, record) in candidates {
        if left == 0 {
            break;
        }
        left = left.saturating_sub(record.size);
        chosen.push(id.clone());
    }
    chosen
}

/// Above the upper threshold: how much is to be freed to get to the lower one.
fn excess(disk: &Disk, policy: &ImageGc) -> Option<u64> {
    let (whole, free) = (disk.capacity_bytes, disk.available_bytes);
    if whole == 0 {
        return None;
    }
    let used_percent = 100 - free.min(whole) * 100 / whole;
    let target = whole / 100 * (100 - u64::from(policy.low_percent));
    (used_percent >= u64::from(policy.high_percent)).then(|| target.saturating_sub(free).max(1))
}

pub struct Collector {
    pub settings: Arc<Settings>,
    pub runtime: Runtime,
    pub images: Images,
    pub recorder: Recorder,
    pub imported: watch::Receiver<Imported>,
}

#[derive(Default)]
struct Known {
    records: HashMap<String, Record>,
    spared: HashSet<String>,
    listed_at: Option<Instant>,
    /// Freeing too little is told once.
    complained: bool,
}

impl Collector {
    pub async fn run(self, shutdown: Shutdown) {
        let mut known = Known::default();
        loop {
            if let Err(error) = self.round(&mut known).await {
                tracing::debug!(%error, "unused images are not collected now");
            }
            tokio::select! {
                () = tokio::time::sleep(LOOK) => {}
                () = shutdown.wait() => return,
            }
        }
    }

    async fn round(&self, known: &mut Known) -> Result<(), Error> {
        let policy = &self.settings.image_gc;
        let disk = Disk::read(&self.settings.agent_dir).unwrap_or_default();
        let excess = excess(&disk, policy);
        let is_due = known.listed_at.is_none_or(|at| at.elapsed() >= LISTING);
        if excess.is_none() && !is_due {
            return Ok(());
        }
        self.list(known).await?;
        let Some(wanted) = excess else {
            known.complained = false;
            return Ok(());
        };
        let chosen = choose(
            &known.records,
            &known.spared,
            policy,
            Instant::now(),
            wanted,
        );
        let mut freed = 0;
        for id in chosen {
            tracing::info!(image = %id, "an unused image is removed, the disk is filling up");
            let request = RemoveImageRequest {
                image: Some(ImageSpec {
                    image: id.clone(),
                    ..ImageSpec::default()
                }),
            };
            self.images
                .remove_image(request)
                .await
                .inspect_err(|error| {
                    let error = text::grpc(error);
                    tracing::warn!(image = %id, %error, "an image cannot be removed");
                })?;
            freed += known.records.remove(&id).map_or(0, |r| r.size);
        }
        if freed < wanted && !std::mem::replace(&mut known.complained, true) {
            self.complain(&disk, freed);
        }
        Ok(())
    }

    fn complain(&self, disk: &Disk, freed: u64) {
        let used = 100 - disk.available_bytes * 100 / disk.capacity_bytes.max(1);
        let message = format!(
            "Insufficient free disk space on the node's image filesystem ({used}% of {:.1} GiB used). \
             Failed to free sufficient space by deleting unused images (freed {freed} bytes). \
             Investigate disk usage, as it could be used by active images, logs, volumes, or other data.",
            disk.capacity_bytes as f64 / f64::from(1 << 30)
        );
        let about = node_reference(&self.settings.node_name);
        self.recorder
            .record(about, true, "FreeDiskSpaceFailed", message);
    }

    /// Notes which images there are and which of them are used.
    async fn list(&self, known: &mut Known) -> Result<(), Error> {
        let images = self.images.list_images(ListImagesRequest::default());
        let containers = self
            .runtime
            .list_containers(ListContainersRequest::default());
        let (images, containers) = tokio::try_join!(images, containers)?;
        let used: HashSet<&str> = containers
            .containers
            .iter()
            .flat_map(|c| {
                let named = c.image.as_ref().map(|i| i.image.as_str());
                [Some(c.image_ref.as_str()), Some(c.image_id.as_str()), named]
            })
            .flatten()
            .filter(|name| !name.is_empty())
            .collect();
        let now = Instant::now();
        known.listed_at = Some(now);
        known
            .records
            .retain(|id, _| images.images.iter().any(|i| i.id == *id));
        known.spared.clear();
        let imported = self.imported.borrow().clone();
        for image in &images.images {
            let record = known.records.entry(image.id.clone()).or_insert(Record {
                first_seen: now,
                last_used: None,
                size: image.size,
            });
            if names(image).any(|name| used.contains(name)) {
                record.last_used = Some(now);
                known.spared.insert(image.id.clone());
            }
            let pause = self.settings.pause_image.as_deref();
            let is_pause = names(image).any(|name| Some(name) == pause);
            if is_pause || is_spared(image, imported.as_ref()) {
                known.spared.insert(image.id.clone());
            }
        }
        Ok(())
    }
}

fn names(image: &Image) -> impl Iterator<Item = &str> {
    let all = image.repo_tags.iter().chain(&image.repo_digests);
    all.chain([&image.id]).map(String::as_str)
}

/// Pinned, made by us, or from an archive; all of them until it is known what came from archives.
fn is_spared(image: &Image, imported: Option<&BTreeSet<String>>) -> bool {
    let is_ours = |name: &str| name.starts_with("sampan.io/");
    image.pinned
        || names(image).any(is_ours)
        || imported.is_none_or(|imported| names(image).any(|name| imported.contains(name)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const POLICY: ImageGc = ImageGc {
        high_percent: 85,
        low_percent: 80,
        minimum_age: Duration::from_secs(120),
    };

    #[test]
    fn the_longest_unused_go_first_and_no_more_than_needed() {
        let now = Instant::now() + Duration::from_secs(1000);
        let ago = |seconds: u64| now.checked_sub(Duration::from_secs(seconds)).unwrap();
        let record = |seen: u64, used: Option<u64>| Record {
            first_seen: ago(seen),
            last_used: used.map(ago),
            size: 10,
        };
        let records: HashMap<String, Record> = [
            ("never".to_owned(), record(500, None)),
            ("long-ago".to_owned(), record(600, Some(400))),
            ("lately".to_owned(), record(600, Some(200))),
            ("young".to_owned(), record(60, None)),
            ("spared".to_owned(), record(900, None)),
        ]
        .into();
        let spared = HashSet::from(["spared".to_owned()]);
        let chosen = |wanted| choose(&records, &spared, &POLICY, now, wanted);
        assert_eq!(chosen(5), ["never"]);
        assert_eq!(chosen(11), ["never", "long-ago"]);
        assert_eq!(chosen(1000), ["never", "long-ago", "lately"]);
        assert!(chosen(0).is_empty());
    }

    #[test]
    fn collection_begins_above_the_upper_threshold_and_aims_at_the_lower() {
        let disk = |free| Disk {
            capacity_bytes: 1000,
            available_bytes: free,
            ..Disk::default()
        };
        assert_eq!(excess(&disk(160), &POLICY), None);
        assert_eq!(excess(&disk(150), &POLICY), Some(50));
        assert_eq!(excess(&disk(0), &POLICY), Some(200));
        assert_eq!(excess(&Disk::default(), &POLICY), None);
    }

    #[test]
    fn imported_pinned_and_own_images_are_spared() {
        let image = |tag: &str| Image {
            id: "sha256:1".into(),
            repo_tags: vec![tag.to_owned()],
            ..Image::default()
        };
        let imported = BTreeSet::from(["r.test/a:1".to_owned()]);
        assert!(is_spared(&image("r.test/a:1"), Some(&imported)));
        assert!(!is_spared(&image("r.test/b:1"), Some(&imported)));
        assert!(is_spared(&image("r.test/b:1"), None));
        assert!(is_spared(&image("sampan.io/pause:1"), Some(&imported)));
        let pinned = Image {
            pinned: true,
            ..image("r.test/b:1")
        };
        assert!(is_spared(&pinned, Some(&imported)));
    }
}
