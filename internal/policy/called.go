package policy

import (
	"maps"
	"slices"
	"sync"
	"sync/atomic"
)

// most bounds the pairs of origin and job with a title.
const most = 4096

// A JobTitle is the name of a job, empty if it has none, and what its owner asks for.
type JobTitle struct {
	Name   string
	Wishes Policy
}

type key struct{ origin, job string }

// Titles keeps the titles of jobs by origin. The zero value is empty and ready; a nil one stays
// empty. Its methods may be called from any goroutine.
type Titles struct {
	version atomic.Uint64 // number of changes so far; readable without the lock

	mu     sync.Mutex // guards the rest
	titles map[key]JobTitle
}

// Set records the title of a job, given by its scheduler's address, among processes of an
// origin. The zero JobTitle removes it.
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

// Version changes whenever a title does, so that callers can cache what they derive.
func (t *Titles) Version() uint64 {
	if t == nil {
		return 0
	}
	return t.version.Load()
}

// Of returns the title of a job among processes of an origin. If the job is unknown (empty), it
// is taken to be the only job of the origin, if there is only one.
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

// All returns the different titles that a job has among all origins.
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

// Name returns a job's name, or its scheduler's address if nobody has named it or origins
// disagree.
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

// compare orders by job, then by origin.
func compare(a, b key) int {
	switch {
	case a == b:
		return 0
	case a.job < b.job || a.job == b.job && a.origin < b.origin:
		return -1
	}
	return 1
}
