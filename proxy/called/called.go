// Package called knows what jobs are called, and what their owners ask for, as the
// host's agent says of the processes of one origin: those in one cgroup and network
// namespace. What is said of one origin counts for no other.
//
// In comes what the agent says ([Table.Set]); the codec for values asks for rules by
// name, the proxy for the codec of a connection and for names in its metrics.
package called

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/psidecar/psidecar/internal/policy"
)

// most is of how many origins and jobs something is known.
const most = 4096

// A Title is what a job is called, empty where nobody has named it, and what its owner
// asks for.
type Title struct {
	Name   string
	Wishes policy.Policy
}

type key struct{ origin, job string }

// Table keeps titles. The zero value is empty and ready; a nil one stays empty. Its
// methods may be called from any goroutine.
type Table struct {
	version atomic.Uint64 // changes so far

	mu     sync.Mutex // guards the rest
	titles map[key]Title
}

// Set notes the title of a job, by its scheduler's address, among processes of an
// origin; the zero Title: it has none any more.
func (t *Table) Set(origin, job string, title Title) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{origin, job}
	before, known := t.titles[k]
	switch {
	case title == before && known || !known && title == (Title{}):
		return
	case title == (Title{}):
		delete(t.titles, k)
	case !known && len(t.titles) >= most:
		return
	default:
		if t.titles == nil {
			t.titles = map[key]Title{}
		}
		t.titles[k] = title
	}
	t.version.Add(1)
}

// Version changes whenever a title does.
func (t *Table) Version() uint64 {
	if t == nil {
		return 0
	}
	return t.version.Load()
}

// Of returns the title of a job among processes of an origin. Where it is not known
// which job that is, it is the only one of the origin, if there is one only.
func (t *Table) Of(origin, job string) Title {
	if t == nil {
		return Title{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if job != "" {
		return t.titles[key{origin, job}]
	}
	var only Title
	n := 0
	for k, title := range t.titles {
		if k.origin == origin {
			only = title
			n++
		}
	}
	if n != 1 {
		return Title{}
	}
	return only
}

// All returns the titles that a job has, by its scheduler's address, each once.
func (t *Table) All(job string) []Title {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []Title
	for _, k := range slices.SortedFunc(maps.Keys(t.titles), compare) {
		if title := t.titles[k]; k.job == job && !slices.Contains(all, title) {
			all = append(all, title)
		}
	}
	return all
}

// Name returns what a job is called, by its scheduler's address: that where nobody
// has named it, or not all of its processes' origins have the same name.
func (t *Table) Name(job string) string {
	name := job
	for i, title := range t.All(job) {
		switch {
		case title.Name == "":
		case i == 0 || name == job:
			name = title.Name
		case name != title.Name:
			return job
		}
	}
	return name
}

func compare(a, b key) int {
	switch {
	case a == b:
		return 0
	case a.job < b.job || a.job == b.job && a.origin < b.origin:
		return -1
	}
	return 1
}
