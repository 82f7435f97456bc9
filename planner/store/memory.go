package store

import (
	"bytes"
	"context"
	"maps"
	"slices"
	"sync"
)

// Memory is a store that is lost when the process ends. A planner without a configured store uses
// it, and then moves no keys. The zero value is empty and ready.
type Memory struct {
	mu      sync.Mutex        // guards entries
	entries map[string][]byte // values are replaced, never changed
}

// Each implements Store. It reads a copy of the map, so each may take its time without blocking
// writers.
func (m *Memory) Each(ctx context.Context, each func(string, []byte) error) error {
	m.mu.Lock()
	entries := maps.Clone(m.entries)
	m.mu.Unlock()
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

// Write implements Store.
func (m *Memory) Write(ctx context.Context, entries []Entry) error {
	if err := Check(entries); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	m.apply(entries)
	return nil
}

// apply is Write for entries that were checked.
func (m *Memory) apply(entries []Entry) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.entries == nil {
		m.entries = map[string][]byte{}
	}
	for _, e := range entries {
		if e.Value == nil {
			delete(m.entries, e.Name)
		} else {
			m.entries[e.Name] = bytes.Clone(e.Value)
		}
	}
}

// Close implements Store.
func (m *Memory) Close() error { return nil }
