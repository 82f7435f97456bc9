// Package store keeps the planner's durable state: entries with a name and a value,
// in a file ([OpenFile]) or in memory ([Memory]).
//
// The planner's plans are its caller ([github.com/psidecar/psidecar/planner/plans]).
// The interface asks for so little that other places can be behind it, such as
// the objects of a cluster's control plane: entries are small, each is written
// as a whole, and several at a time only in order, not together.
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

// ErrUnavailable says that the store cannot be written just now, by no fault
// of the entries: a full disk, or another planner that has the lead.
var ErrUnavailable = errors.New("the store cannot be written")

// A Store holds entries. Its methods may be called from any goroutine.
type Store interface {
	// Each hands every entry to each, by name in byte order; an error of each
	// ends it. Name and value are valid during the call.
	Each(ctx context.Context, each func(name string, value []byte) error) error
	// Write writes entries in order and returns when they are safe. If it fails
	// or the process ends meanwhile, those up to some point are there as whole
	// entries, and those after it are not. What cannot be written for now
	// fails with ErrUnavailable.
	Write(ctx context.Context, entries []Entry) error
	Close() error
}

// An Entry is written in place of the one of the same name.
type Entry struct {
	Name  string
	Value []byte // nil: the entry is removed
}

// Check returns the first fault of entries that are to be written.
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
