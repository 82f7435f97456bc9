package proxy

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/psidecar/psidecar/proxy/codec/advice"
)

const (
	// adviceState bounds what each candidate of all studies keeps, in bytes.
	adviceState = 64 << 20 // bytes that each candidate keeps, in all studies together
	// maxStudies bounds the jobs that are studied at a time.
	maxStudies = 4 // jobs that are studied at a time
)

// Errors of Advise.
var (
	ErrNoValues = errors.New("this proxy has no codec for values; see --codec")
	ErrAdvising = errors.New("codecs are being tried already")
)

// studies tries codecs on the messages of several jobs at a time.
type studies struct {
	mu     sync.Mutex               // guards the rest
	byJob  map[string]*advice.Study // at most maxStudies
	failed error                    // the last one
}

// studyOf returns a job's study, and nil where there are too many.
func (s *studies) studyOf(job string) (*advice.Study, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	study := s.byJob[job]
	if study == nil && len(s.byJob) < maxStudies {
		var err error
		if study, err = advice.NewStudy(adviceState / maxStudies); err != nil {
			return nil, err
		}
		s.byJob[job] = study
	}
	return study, nil
}

// see shows a message to its job's study. It is called by the goroutines of many connections.
func (s *studies) see(job, connection string, node int32, frames [][]byte) {
	study, err := s.studyOf(job)
	if err == nil && study != nil {
		err = study.Message(connection, node, frames)
	}
	if err != nil {
		s.mu.Lock()
		s.failed = err
		s.mu.Unlock()
	}
}

// Advise tries the codecs on what this host's processes send for some time, and reports by
// job; of more than maxStudies jobs, on those seen first. It blocks for that time, or until
// ctx ends, and takes several times the processor time of the codecs in use. Only one trial
// runs at a time: others get [ErrAdvising].
func (p *Proxy) Advise(ctx context.Context, during time.Duration) (map[string]advice.Report, error) {
	if p.opts.Values == nil {
		return nil, ErrNoValues
	}
	// A trial costs several times what the codecs in use do; two at a time would disturb each
	// other's figures.
	if !p.advising.TryLock() {
		return nil, ErrAdvising
	}
	defer p.advising.Unlock()
	s := studies{byJob: map[string]*advice.Study{}}
	p.opts.Values.Watch(s.see)
	select {
	case <-ctx.Done():
	case <-time.After(during):
	}
	// see may still be running for some connection, hence the lock below.
	p.opts.Values.Watch(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	// What could be tried is reported all the same.
	if s.failed != nil {
		p.log.Debug("trying codecs", "error", s.failed)
	}
	reports := map[string]advice.Report{}
	for job, study := range s.byJob {
		reports[job] = study.Report()
	}
	return reports, nil
}

// getAdvice answers with what codecs would do to the messages of the next seconds (default
// 10), of the job that is asked for, or of the only one.
func (p *Proxy) getAdvice(w http.ResponseWriter, r *http.Request) {
	seconds := 10
	if text := r.FormValue("seconds"); text != "" {
		var err error
		if seconds, err = strconv.Atoi(text); err != nil || seconds < 1 || seconds > 60 {
			http.Error(w, "seconds: want 1 to 60", http.StatusBadRequest)
			return
		}
	}
	reports, err := p.Advise(r.Context(), time.Duration(seconds)*time.Second)
	switch {
	case errors.Is(err, ErrNoValues):
		http.Error(w, err.Error(), http.StatusNotFound)
		return
	case errors.Is(err, ErrAdvising):
		http.Error(w, err.Error(), http.StatusConflict)
		return
	}
	report, ok := reports[r.FormValue("job")]
	if r.FormValue("job") == "" && len(reports) == 1 {
		for _, report = range reports {
			ok = true
		}
	}
	// Without any report the answer is an empty one: nothing was sent.
	if !ok && len(reports) > 0 {
		http.Error(w, "several jobs sent traffic, or a different one did: select one (job)", http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(report); err != nil {
		p.log.Debug("answering /api/v1/codecs/advice", "error", err)
	}
}
