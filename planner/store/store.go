// Package store keeps the planner's durable state: entries with a name and a value.
//
// There are two stores: a file ([OpenFile]) and memory ([Memory]).
//
// Entries are small and each is written as a whole. A file writes the entries of one call together,
// but callers must not rely on that: they choose an order in which every prefix is a valid state;
// package plans writes a new snapshot before the head that refers to it, and removes the old one
// last.
//
// A store must never return other entries than those written. Keys live where the plans say, and a
// planner with an old or damaged record would send pushes to servers that do not have the values.
// So a file is sealed and verified as a whole when it is opened (log.go). One that is damaged is
// moved aside: an empty store is safe, since proxies teach it where keys are.
package store

import (
	"context"
	"errors"
	"fmt"
	"strings"
)

const (
	// MaxName is how many bytes an entry's name may have.
	MaxName = 512
	// MaxValue is how many bytes an entry's value may have.
	MaxValue = 256 << 10
)

// ErrUnavailable says that the store cannot be written at the moment, through no fault of the
// entries: the disk is full, for instance. Callers may try again later.
var ErrUnavailable = errors.New("the store cannot be written")

// A Store holds entries by name. Its methods may be called from any goroutine.
type Store interface {
	// Each calls each for every entry, by name in byte order, and ends at its first error, which it
	// returns. Name and value are valid only during the call. each must not call the store.
	Each(ctx context.Context, each func(name string, value []byte) error) error
	// Write writes entries in order and returns when they are durable. If it fails, or the process
	// ends meanwhile, some prefix of them is stored, each entry whole. It fails with ErrUnavailable
	// if trying again later can help. It does not keep the values.
	Write(ctx context.Context, entries []Entry) error
	// Close releases the store. No method may be called after it.
	Close() error
}

// An Entry is written in place of the one of the same name.
type Entry struct {
	Name  string
	Value []byte // nil: the entry is removed
}

// Check returns the first fault of entries that are about to be written, nil if there is none.
// Every store calls it first, so that all accept the same entries.
func Check(entries []Entry) error {
	for _, e := range entries {
		switch {
		case e.Name == "" || len(e.Name) > MaxName:
			return fmt.Errorf("an entry with a name of %d bytes: want 1 to %d", len(e.Name), MaxName)
		case strings.ContainsRune(e.Name, 0):
			return fmt.Errorf("entry %q: a name has no zero byte", e.Name)
		case len(e.Value) > MaxValue:
			return fmt.Errorf("entry %q has %d bytes: at most %d fit", e.Name, len(e.Value), MaxValue)
		}
	}
	return nil
}
