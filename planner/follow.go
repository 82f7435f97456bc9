package planner

import (
	"cmp"
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

// A host is what the proxy of a host reported last.
type host struct {
	report *api.CodecReport
	memory int // that the report takes
	// follower is nil if the proxy does not follow at the moment.
	follower *follower
}

// A follower is one proxy's Follow stream.
type follower struct {
	// wake has room for one. Followers compare versions when woken, so one pending wake-up stands
	// for any number of changes.
	wake chan struct{}
}

// wake makes all followers look for newer rules and trials. It does not block. The caller holds
// s.mu.
func (s *Codecs) wake() {
	for f := range s.followers {
		select {
		case f.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Follow implements api.CodecsServer. It sends all rules at the start and at each change, and
// trials as they begin. A proxy that falls behind gets the newest rules only: no queue grows.
//
// One goroutine receives the proxy's reports while this one sends. It ends when the stream does,
// which is at the latest when Follow returns.
func (s *Codecs) Follow(stream grpc.BidiStreamingServer[api.CodecReport, api.CodecOrder]) error {
	first, err := stream.Recv()
	if err != nil {
		return err
	}
	f := &follower{wake: make(chan struct{}, 1)}
	f.wake <- struct{}{}
	if err := s.addFollower(f, first); err != nil {
		return err
	}
	defer s.removeFollower(f, first.GetHost())
	ended := make(chan error, 1)
	go func() { ended <- s.listen(stream, f, first.GetHost()) }()
	var version, trial uint64
	for {
		select {
		case err := <-ended:
			return err
		case <-f.wake:
			rules, try := s.news(version, trial)
			if rules == nil && try == nil {
				continue
			}
			if err := stream.Send(&api.CodecOrder{Rules: rules, Trial: try}); err != nil {
				return err
			}
			version, trial = max(version, rules.GetVersion()), max(trial, try.GetNumber())
		}
	}
}

// news returns the rules if they are newer than version, and the trial if it is newer than the
// given one and still running; otherwise nil for each.
func (s *Codecs) news(version, trial uint64) (*api.CodecRules, *api.CodecTrial) {
	s.mu.Lock()
	defer s.mu.Unlock()
	var rules *api.CodecRules
	if s.version > version {
		rules = s.allRules("")
	}
	if s.trial.GetNumber() > trial && s.now().Before(s.until) {
		return rules, s.trial
	}
	return rules, nil
}

// listen stores the reports of a follower until its stream ends.
func (s *Codecs) listen(stream grpc.BidiStreamingServer[api.CodecReport, api.CodecOrder], f *follower, name string) error {
	for {
		r, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := checkReport(r, name); err != nil {
			return err
		}
		if err := s.keepReport(f, name, r); err != nil {
			return err
		}
	}
}

// keepReport keeps a report of a follower, unless another one has the host's name by now.
func (s *Codecs) keepReport(f *follower, name string, r *api.CodecReport) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if h := s.hosts[name]; h != nil && h.follower == f {
		return s.replaceReport(h, r)
	}
	return nil
}

// replaceReport replaces the report of a host, unless those of all hosts would take too much memory.
// The caller holds s.mu.
func (s *Codecs) replaceReport(h *host, r *api.CodecReport) error {
	memory := HeldBytes(r)
	if most := cmp.Or(s.Memory, MaxCodecMemory); s.memory-h.memory+memory > most {
		return status.Errorf(codes.ResourceExhausted, "a report of %d bytes of memory: those of all proxies take %d already, at most %d are kept", memory, s.memory-h.memory, most)
	}
	s.memory += memory - h.memory
	h.report, h.memory = r, memory
	return nil
}

// checkReport checks that a report is of the stream's host, and bounds what is kept of it.
func checkReport(r *api.CodecReport, name string) error {
	switch {
	case r.GetHost() == "" || len(r.GetHost()) > 256 || r.GetHost() != name:
		return status.Errorf(codes.InvalidArgument, "a report of host %.300q, after one of %.300q", r.GetHost(), name)
	case len(r.GetAdvice()) > MaxAdvice || len(r.GetRefused()) > 4096 || len(r.GetUntried()) > 4096:
		return status.Errorf(codes.InvalidArgument, "host %s reports more than is kept: advice on %d jobs, at most %d", name, len(r.GetAdvice()), MaxAdvice)
	}
	if err := checkMeasures(r); err != nil {
		return err
	}
	for _, a := range r.GetAdvice() {
		if len(a.GetCandidates()) > MaxCandidates {
			return status.Errorf(codes.InvalidArgument, "host %s reports %d codecs, at most %d are kept", name, len(a.GetCandidates()), MaxCandidates)
		}
	}
	return nil
}

// addFollower registers a follower in place of an earlier one of the same host. The earlier stream
// goes on receiving rules until it ends, but its reports are ignored: a proxy that restarts may be
// back before the end of its old stream is noticed.
func (s *Codecs) addFollower(f *follower, first *api.CodecReport) error {
	if err := checkReport(first, first.GetHost()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.hosts[first.GetHost()]
	if h == nil {
		if len(s.hosts) >= MaxCodecHosts && !s.forgetOne() {
			return status.Errorf(codes.ResourceExhausted, "%d proxies follow already", MaxCodecHosts)
		}
		h = &host{}
	}
	if err := s.replaceReport(h, first); err != nil {
		return err
	}
	h.follower = f
	s.hosts[first.GetHost()] = h
	s.followers[f] = true
	return nil
}

// forgetOne forgets some host that does not follow, and reports whether there was one. The caller
// holds s.mu.
func (s *Codecs) forgetOne() bool {
	for name, h := range s.hosts {
		if h.follower == nil {
			s.memory -= h.memory
			delete(s.hosts, name)
			return true
		}
	}
	return false
}

// removeFollower ends a follower. The last report of its host is kept for Describe.
func (s *Codecs) removeFollower(f *follower, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
	if h := s.hosts[name]; h != nil && h.follower == f {
		h.follower = nil
	}
}
