package policy

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// most is of how many origins and jobs something is known.
const most = 4096

// A JobTitle is what a job is called, empty where nobody has named it, and what its owner
// asks for.
type JobTitle struct {
	Name   string
	Wishes Policy
}

type key struct{ origin, job string }

// Titles keeps titles. The zero value is empty and ready; a nil one stays empty. Its
// methods may be called from any goroutine.
type Titles struct {
	version atomic.Uint64 // changes so far

	mu     sync.Mutex // guards the rest
	titles map[key]JobTitle
}

// Set notes the title of a job, by its scheduler's address, among processes of an
// origin; the zero JobTitle: it has none any more.
func (t *Titles) Set(origin, job string, title JobTitle) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := key{origin, job}
	before, known := t.titles[k]
	switch {
	case title == before && known || !known && title == (JobTitle{}):
		return
	case title == (JobTitle{}):
		delete(t.titles, k)
	case !known && len(t.titles) >= most:
		return
	default:
		if t.titles == nil {
			t.titles = map[key]JobTitle{}
		}
		t.titles[k] = title
	}
	t.version.Add(1)
}

// Version changes whenever a title does.
func (t *Titles) Version() uint64 {
	if t == nil {
		return 0
	}
	return t.version.Load()
}

// Of returns the title of a job among processes of an origin. Where it is not known
// which job that is, it is the only one of the origin, if there is one only.
func (t *Titles) Of(origin, job string) JobTitle {
	if t == nil {
		return JobTitle{}
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if job != "" {
		return t.titles[key{origin, job}]
	}
	var only JobTitle
	n := 0
	for k, title := range t.titles {
		if k.origin == origin {
			only = title
			n++
		}
	}
	if n != 1 {
		return JobTitle{}
	}
	return only
}

// All returns the titles that a job has, by its scheduler's address, each once.
func (t *Titles) All(job string) []JobTitle {
	if t == nil {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	var all []JobTitle
	for _, k := range slices.SortedFunc(maps.Keys(t.titles), compare) {
		if title := t.titles[k]; k.job == job && !slices.Contains(all, title) {
			all = append(all, title)
		}
	}
	return all
}

// Name returns what a job is called, by its scheduler's address: that where nobody
// has named it, or not all of its processes' origins have the same name.
func (t *Titles) Name(job string) string {
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
