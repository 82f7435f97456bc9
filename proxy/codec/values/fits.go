package values

import (
	"sync"
	"sync/atomic"
)

// maxFits bounds the jobs for which fits are kept. Beyond it one of them is forgotten.
const maxFits = 1024

// latelyFit is over how many layers the counts reach back: older ones weigh half with each
// round.
const latelyFit = 4096

// fits records how pushes fare under rules with a threshold, by job: a threshold that never
// applies, for one reason or another, must not look as if it worked. The zero value is
// ready and safe for concurrent use.
type fits struct {
	mu   sync.Mutex      // guards jobs, not their contents
	jobs map[string]*fit // at most maxFits
}

// fit is how one job's pushes have fared lately. Its fields are read and written by several
// goroutines without a lock: a count that is lost in between decides nothing.
type fit struct {
	thresholded atomic.Int64 // layers of pushes of which something could wait
	whole       atomic.Int64 // layers that went whole
	why         atomic.Pointer[Reason]
}

// of returns the fit of a job, the same one each time until it is forgotten.
func (f *fits) of(job string) *fit {
	f.mu.Lock()
	defer f.mu.Unlock()
	if one := f.jobs[job]; one != nil {
		return one
	}
	if f.jobs == nil {
		f.jobs = map[string]*fit{}
	}
	for other := range f.jobs {
		if len(f.jobs) < maxFits {
			break
		}
		delete(f.jobs, other)
	}
	one := new(fit)
	f.jobs[job] = one
	return one
}

// note counts a layer of a push: as thresholded if why is empty.
func (f *fit) note(why Reason) {
	if why == "" {
		f.thresholded.Add(1)
	} else {
		f.whole.Add(1)
		if last := f.why.Load(); last == nil || *last != why {
			f.why.Store(&why)
		}
	}
	if t, w := f.thresholded.Load(), f.whole.Load(); t+w > latelyFit {
		f.thresholded.Store(t / 2)
		f.whole.Store(w / 2)
	}
}

// Unfit returns why none of a job's pushes were thresholded lately although a rule has a
// threshold for them; ok is false if some were, or none came.
func (c *Codec) Unfit(job string) (why Reason, ok bool) {
	c.fits.mu.Lock()
	f := c.fits.jobs[job] // to ask makes no job known
	c.fits.mu.Unlock()
	if f == nil {
		return "", false
	}
	last := f.why.Load()
	if last == nil || f.thresholded.Load() > 0 || f.whole.Load() == 0 {
		return "", false
	}
	return *last, true
}

// noteWhole counts a push whose layers could not be looked at, if a rule has a threshold.
func (s *Sender) noteWhole(why Reason) {
	for i := range s.spans {
		if r := s.spans[i].rule; r != nil && r.Threshold > 0 {
			s.fit.note(why)
			return
		}
	}
}
