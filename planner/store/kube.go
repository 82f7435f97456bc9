// This file keeps entries in the objects of a Kubernetes cluster, and makes sure that of several
// planners only one writes them.
//
// The objects are ConfigMaps: a root, which lists pages, and pages, which hold entries. All of them
// stay far below the 1 MiB that an object may have. [Campaign.Run] waits for a Lease and then opens
// the store.
//
// A planner that was replaced without noticing cannot write: every update names the resource
// version that it replaces. A planner that takes over first writes the root, whose version is
// needed to add pages, and then every page, so that no version that another planner knows is valid
// any more. All objects have the count of the Lease's transitions as an annotation, for people.

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

// Objects is the part of client-go's ConfigMapInterface that the store uses.
type Objects interface {
	Get(ctx context.Context, name string, o metav1.GetOptions) (*corev1.ConfigMap, error)
	List(ctx context.Context, o metav1.ListOptions) (*corev1.ConfigMapList, error)
	Create(ctx context.Context, m *corev1.ConfigMap, o metav1.CreateOptions) (*corev1.ConfigMap, error)
	Update(ctx context.Context, m *corev1.ConfigMap, o metav1.UpdateOptions) (*corev1.ConfigMap, error)
	Delete(ctx context.Context, name string, o metav1.DeleteOptions) error
}

// Holds returns the Lease's count of transitions if this process holds it now, as the API server
// says, and otherwise an error. It must ask the server: what this process remembers may be out of
// date.
type Holds func(ctx context.Context) (transitions int64, err error)

// A KubeStore holds entries in the ConfigMaps of a namespace, and a copy of all of them in memory,
// from which it reads. It implements [Store].
//
// mu is held while objects are written, so writes are made one at a time and in order. After a
// failed write the memory and the cluster may differ; unsure is set then, and the next Write takes
// the store over again before it writes, which reads everything back.
//
// Invariants, unless unsure: pages are those that the root lists, and new ones without an object;
// index has, for every entry, the page with its newest record.
type KubeStore struct {
	objects Objects
	name    string
	holds   Holds

	mu    sync.Mutex // guards the rest; held while objects are written, one at a time
	root  root
	pages map[uint64]*page
	// The page of each entry.
	index map[string]*page
	// The page for new entries; nil until one is looked for.
	fill *page
	// The highest sequence number given so far.
	last uint64
	// unsure says that a write failed and the state of the cluster is unknown.
	unsure bool
	closed bool
}

// OpenKube takes over the store of that name and reads it; see takeOver. From the moment that
// another process takes it over, writes fail with [ErrUnavailable].
func OpenKube(ctx context.Context, objects Objects, name string, holds Holds) (*KubeStore, error) {
	s := &KubeStore{objects: objects, name: name, holds: holds}
	if err := s.takeOver(ctx); err != nil {
		return nil, fmt.Errorf("opening the store %s: %w", name, err)
	}
	return s, nil
}

// Each implements Store. It reads the copy in memory, as of the time of the call.
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

// Write implements Store. Consecutive entries that belong to one page are written by one update.
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

// Close implements Store. The Lease is released by [Campaign.Run].
func (s *KubeStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed = true
	return nil
}
