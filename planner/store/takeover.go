package store

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// attempts bounds how often an object is read again that somebody else has changed in between.
	attempts = 5
	// atOnce is how many pages are taken over in parallel.
	atOnce = 8
)

func (s *KubeStore) pageName(number uint64) string { return fmt.Sprintf("%s-%06d", s.name, number) }

// takeOver makes this process the only one that can write to the store, and reads all entries. The
// caller holds s.mu, or nobody else has s yet.
//
// The order is what makes it safe. Writing the root first changes the version that an old leader
// would need to add a page. Writing every page then, even unchanged, does the same for updates of
// pages. An update of the old leader that arrives before its page is taken over is in what is read
// here; one that arrives after that is refused by the API server. Only then are pages deleted that
// the root does not list.
func (s *KubeStore) takeOver(ctx context.Context) error {
	for attempt := 1; ; attempt++ {
		err := s.takeRoot(ctx)
		if err == nil {
			break
		}
		if !isRace(err) || attempt == attempts {
			return err
		}
	}
	pages := make([]*page, len(s.root.Pages))
	g, pulling := errgroup.WithContext(ctx)
	g.SetLimit(atOnce)
	for i, number := range s.root.Pages {
		g.Go(func() (err error) {
			pages[i], err = s.takePage(pulling, number)
			return err
		})
	}
	if err := g.Wait(); err != nil {
		return err
	}
	// All pages are ours now. Clean up what interrupted writes of others have left.
	stale := s.know(pages)
	if err := s.deleteRubbish(ctx); err != nil {
		return err
	}
	for _, d := range stale {
		if err := s.flush(ctx, d); err != nil {
			return err
		}
	}
	s.unsure = false
	return nil
}

// isRace reports whether somebody else has changed or created the object in between.
func isRace(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// takeRoot reads the root, asks whether the Lease is still held, and writes the root with the
// version that was read, in this order. If another planner takes over after the read, the write
// fails, whatever the Lease said.
func (s *KubeStore) takeRoot(ctx context.Context) error {
	object, err := s.objects.Get(ctx, s.name, metav1.GetOptions{})
	r := root{Format: rootFormat}
	switch {
	case apierrors.IsNotFound(err):
		// No root means a new store, unless there are pages: then somebody has deleted the root,
		// and an empty store would make all keys appear to be at home.
		left, err := s.objects.List(ctx, metav1.ListOptions{LabelSelector: s.selector(), Limit: 1})
		if err != nil {
			return fmt.Errorf("looking for pages: %w", err)
		}
		if len(left.Items) > 0 {
			return fmt.Errorf("ConfigMap %s is missing, but its pages exist (%s): restore it, or if all keys are at home, delete all with label %s",
				s.name, left.Items[0].Name, s.selector())
		}
	case err != nil:
		return fmt.Errorf("reading ConfigMap %s: %w", s.name, err)
	default:
		if r, err = parseRoot(object); err != nil {
			return err
		}
	}
	transitions, err := s.holds(ctx)
	if err != nil {
		return err
	}
	// A lower count, with the Lease in hand, is that of a Lease that was
	// deleted and made again.
	r.Term = max(r.Term, transitions)
	r.Opened++
	return s.writeRoot(ctx, r)
}

// selector selects the root and all pages, listed or not.
func (s *KubeStore) selector() string { return StoreLabel + "=" + s.name }

// writeRoot writes the root and adopts it in memory if that succeeds.
func (s *KubeStore) writeRoot(ctx context.Context, r root) error {
	text, err := json.Marshal(r)
	if err != nil {
		return fmt.Errorf("encoding ConfigMap %s: %w", s.name, err)
	}
	s.root.Term, s.root.Opened = r.Term, r.Opened // for the object's annotations
	m := s.object(r.object, s.name)
	m.Data = map[string]string{rootKey: string(text)}
	if r.object, err = s.putObject(ctx, m); err != nil {
		return err
	}
	s.root = r
	return nil
}

// object returns the object to be written in place of before, without its content. It has before's
// resource version, on which the API server refuses the update if the object has changed since.
// Without before it has none, and is created.
func (s *KubeStore) object(before *corev1.ConfigMap, name string) *corev1.ConfigMap {
	m := &corev1.ConfigMap{}
	if before != nil {
		before.ObjectMeta.DeepCopyInto(&m.ObjectMeta) // labels and owners that others gave it stay
	}
	m.Name = name
	metav1.SetMetaDataLabel(&m.ObjectMeta, StoreLabel, s.name)
	metav1.SetMetaDataLabel(&m.ObjectMeta, "app.kubernetes.io/managed-by", "psidecar")
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, TermAnnotation, strconv.FormatInt(s.root.Term, 10))
	metav1.SetMetaDataAnnotation(&m.ObjectMeta, openedAnnotation, strconv.FormatUint(s.root.Opened, 10))
	return m
}

// putObject creates an object without a resource version, and updates any other. It returns the
// object with its new version.
func (s *KubeStore) putObject(ctx context.Context, m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	write := func() (*corev1.ConfigMap, error) { return s.objects.Update(ctx, m, metav1.UpdateOptions{}) }
	if m.ResourceVersion == "" {
		write = func() (*corev1.ConfigMap, error) { return s.objects.Create(ctx, m, metav1.CreateOptions{}) }
	}
	now, err := write()
	if isRace(err) {
		return nil, fmt.Errorf("writing ConfigMap %s: it was changed concurrently; does another planner have the lead? %w", m.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("writing ConfigMap %s: %w", m.Name, err)
	}
	return now, nil
}

// takePage reads a page and writes it back unchanged. The new version invalidates the one that an
// old leader has.
func (s *KubeStore) takePage(ctx context.Context, number uint64) (*page, error) {
	name := s.pageName(number)
	for attempt := 1; ; attempt++ {
		object, err := s.objects.Get(ctx, name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("reading ConfigMap %s, a page: %w", name, err)
		}
		p, err := parsePage(number, object)
		if err != nil {
			return nil, err
		}
		m := s.object(object, name)
		m.BinaryData = object.BinaryData
		p.object, err = s.putObject(ctx, m)
		if err == nil {
			p.object.BinaryData = nil // the entries have it
			return p, nil
		}
		if !isRace(err) || attempt == attempts {
			return nil, err
		}
	}
}

// know replaces the copy in memory by the pages that were read. It returns the drafts that remove
// the older one of two records of an entry, which an interrupted move between pages leaves.
func (s *KubeStore) know(pages []*page) (stale []*draft) {
	s.pages, s.index, s.fill = map[uint64]*page{}, map[string]*page{}, nil
	drop := func(p *page, name string) {
		for _, d := range stale {
			if d.page == p {
				d.remove(name)
				return
			}
		}
		d := newDraft(p)
		d.remove(name)
		stale = append(stale, d)
	}
	for _, p := range pages {
		s.pages[p.number] = p
		for name, r := range p.entries {
			s.last = max(s.last, r.sequence)
			other := s.index[name]
			if other != nil && other.entries[name].sequence > r.sequence {
				drop(p, name)
				continue
			}
			if other != nil {
				drop(other, name)
			}
			s.index[name] = p
		}
	}
	return stale
}

// deleteRubbish deletes pages that the root does not list and that were written before this
// takeover: nobody can list them any more. One that was written since belongs to a planner that has
// taken over after this one. Each deletion names the version that was listed, so it cannot hit a
// newer object.
func (s *KubeStore) deleteRubbish(ctx context.Context) error {
	listed := map[string]bool{s.name: true}
	for number := range s.pages {
		listed[s.pageName(number)] = true
	}
	o := metav1.ListOptions{LabelSelector: s.selector(), Limit: 64}
	for {
		list, err := s.objects.List(ctx, o)
		if err != nil {
			return fmt.Errorf("listing ConfigMaps with label %s: %w", o.LabelSelector, err)
		}
		for i := range list.Items {
			m := &list.Items[i]
			opened, err := strconv.ParseUint(m.Annotations[openedAnnotation], 10, 64)
			if listed[m.Name] || err != nil || opened >= s.root.Opened {
				continue
			}
			err = s.objects.Delete(ctx, m.Name, metav1.DeleteOptions{Preconditions: &metav1.Preconditions{UID: &m.UID, ResourceVersion: &m.ResourceVersion}})
			if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) {
				return fmt.Errorf("deleting orphaned ConfigMap %s: %w", m.Name, err)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

var errFull = errors.New("it is full")
