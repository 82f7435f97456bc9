// This part keeps a planner's entries in objects of a Kubernetes cluster,
// and sees to it that of several planners one writes them.
//
// In come entries, by the methods of [Store]; out go ConfigMaps: a root,
// which lists pages, and pages, which hold entries, none of them near the 1 MiB
// that an object may have. [Campaign.Run] waits for a Lease and then opens the
// store. The command psidecar planner calls it.
//
// A planner that has been replaced without knowing it cannot write: every update
// names the resource version that it replaces. A planner that takes over first
// writes the root, whose version is needed to add pages, and then every page, so
// that no version that another planner knows is valid; both get the count of the
// Lease's transitions as an annotation, and a root with a higher count than one's
// own is not taken over.

package store

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

const (
	// pageBytes is how large a page grows that has more than one entry. A page
	// is written as a whole for every change: so it is small.
	pageBytes = 32 << 10
	// maxPages bounds the store, at some 256 MiB of small entries.
	maxPages = 8192
)

// What the objects are marked with.
const (
	// StoreLabel has the store's name as its value, on the root and its pages.
	StoreLabel = "psidecar.io/store"
	// TermAnnotation is the count of the Lease's transitions when the object
	// was written.
	TermAnnotation = "psidecar.io/lease-transitions"
	// openedAnnotation counts how often the store was taken over.
	openedAnnotation = "psidecar.io/opened"
)

// Objects are the ConfigMaps of a namespace, as of client-go.
type Objects interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.ConfigMap, error)
	List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error)
	Create(ctx context.Context, m *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, m *corev1.ConfigMap, o metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// Holds returns the count of the Lease's transitions if this process has it
// now, as the API server says, and else an error.
type Holds func(ctx context.Context) (transitions int64, err error)

// A KubeStore holds entries in the ConfigMaps of a namespace. It has all of them in
// memory too. It implements [Store].
type KubeStore struct {
	objects Objects
	name    string
	holds   Holds

	mu    sync.Mutex // guards the rest; held while objects are written, one at a time
	root  root
	pages map[uint64]*page
	index map[string]*page // by entry
	fill  *page            // where new entries go; nil: to be found
	last  uint64           // sequence number given last
	// unsure: a write failed, and the state in the cluster is unknown.
	unsure bool
	closed bool
}

// OpenKube takes the store of that name over. Until then, and from the moment that
// another process does, writes fail with [store.ErrUnavailable].
func OpenKube(ctx context.Context, objects Objects, name string, holds Holds) (*KubeStore, error) {
	s := &KubeStore{objects: objects, name: name, holds: holds}
	if err := s.takeOver(ctx); err != nil {
		return nil, fmt.Errorf("opening the store %s: %w", name, err)
	}
	return s, nil
}

// Each implements Store.
func (s *KubeStore) Each(ctx context.Context, each func(string, []byte) error) error {
	s.mu.Lock()
	entries := make(map[string][]byte, len(s.index)) // values are replaced, never changed
	for name, p := range s.index {
		entries[name] = p.entries[name].value
	}
	s.mu.Unlock()
	for _, name := range slices.Sorted(maps.Keys(entries)) {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := each(name, entries[name]); err != nil {
			return err
		}
	}
	return nil
}

// Write implements Store. Neighbours that go to one page are written
// together.
func (s *KubeStore) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.closed {
		return fmt.Errorf("%w: %s is closed", ErrUnavailable, s.name)
	}
	if s.unsure {
		if err := s.takeOver(ctx); err != nil {
			return fmt.Errorf("%w: %s: %w", ErrUnavailable, s.name, err)
		}
	}
	if err := s.write(ctx, entries); err != nil {
		s.unsure = true
		return fmt.Errorf("%w: %s: %w", ErrUnavailable, s.name, err)
	}
	return nil
}

// Close implements Store. The leader releases the Lease.
func (s *KubeStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
