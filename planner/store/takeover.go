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
	// attempts bounds how often what somebody else has changed meanwhile is
	// read again.
	attempts = 5
	// atOnce is how many pages are taken over at a time.
	atOnce = 8
)

func (s *KubeStore) pageName(number uint64) string { return fmt.Sprintf("%s-%06d", s.name, number) }

// takeOver makes this process the only one that can write, and reads the entries.
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

// isRace reports whether somebody has written or made the object meanwhile.
func isRace(err error) bool { return apierrors.IsConflict(err) || apierrors.IsAlreadyExists(err) }

// takeRoot reads the root, asks whether the Lease is still held, in this order, and
// writes the version that was read. If another planner took over between the read
// and the write, the write fails.
func (s *KubeStore) takeRoot(ctx context.Context) error {
	object, err := s.objects.Get(ctx, s.name, metav1.GetOptions{})
	r := root{Format: rootFormat}
	switch {
	case apierrors.IsNotFound(err):
		left, err := s.objects.List(ctx, metav1.ListOptions{LabelSelector: s.selector(), Limit: 1})
		if err != nil {
			return fmt.Errorf("looking for pages: %w", err)
		}
		if len(left.Items) > 0 {
			return fmt.Errorf("ConfigMap %s is gone, its pages are not (%s): bring it back, or, if all keys are at home, delete all with label %s",
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

func (s *KubeStore) selector() string { return StoreLabel + "=" + s.name }

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

// object returns the object to be written in place of before, without its
// content.
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

// putObject creates an object that has no version, and updates others.
func (s *KubeStore) putObject(ctx context.Context, m *corev1.ConfigMap) (*corev1.ConfigMap, error) {
	write := func() (*corev1.ConfigMap, error) { return s.objects.Update(ctx, m, metav1.UpdateOptions{}) }
	if m.ResourceVersion == "" {
		write = func() (*corev1.ConfigMap, error) { return s.objects.Create(ctx, m, metav1.CreateOptions{}) }
	}
	now, err := write()
	if isRace(err) {
		return nil, fmt.Errorf("writing ConfigMap %s, which somebody else has written since; has another planner the lead? %w", m.Name, err)
	}
	if err != nil {
		return nil, fmt.Errorf("writing ConfigMap %s: %w", m.Name, err)
	}
	return now, nil
}

// takePage reads a page and writes it as it is, which makes the versions that
// others know invalid.
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

// know takes pages as all there are. It returns what removes the older one of
// two records of an entry.
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

// deleteRubbish deletes pages that the root does not list, and that are older than
// this process's turn: nobody can list them any more. One that is not older belongs
// to a planner that has taken over since.
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
				return fmt.Errorf("deleting ConfigMap %s, which belongs to nothing: %w", m.Name, err)
			}
		}
		if o.Continue = list.Continue; o.Continue == "" {
			return nil
		}
	}
}

var errFull = errors.New("it is full")
