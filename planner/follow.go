package planner

import (
	"errors"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
)

// host is what a host's proxy said last.
type host struct {
	report   *api.CodecReport
	follower *follower // nil: it does not follow any more
}

// A follower is one proxy's Follow.
type follower struct {
	wake chan struct{} // holds one
}

// wake has all followers look at what there is; the caller holds s.mu.
func (s *Codecs) wake() {
	for f := range s.followers {
		select {
		case f.wake <- struct{}{}:
		default: // it will look anyway
		}
	}
}

// Follow implements api.CodecsServer.
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

// news returns rules newer than the version, and a trial that is still going on
// and newer than the last, if there are any.
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

// listen takes a follower's reports until it ends.
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
		s.mu.Lock()
		if h := s.hosts[name]; h != nil && h.follower == f { // else another has its name
			h.report = r
		}
		s.mu.Unlock()
	}
}

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

// addFollower notes a follower, which takes the place of one of the same host.
func (s *Codecs) addFollower(f *follower, first *api.CodecReport) error {
	if err := checkReport(first, first.GetHost()); err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.hosts[first.GetHost()] == nil && len(s.hosts) >= MaxCodecHosts && !s.forgetOne() {
		return status.Errorf(codes.ResourceExhausted, "%d proxies follow already", MaxCodecHosts)
	}
	s.hosts[first.GetHost()] = &host{first, f}
	s.followers[f] = true
	return nil
}

// forgetOne forgets a host that does not follow any more; the caller holds s.mu.
func (s *Codecs) forgetOne() bool {
	for name, h := range s.hosts {
		if h.follower == nil {
			delete(s.hosts, name)
			return true
		}
	}
	return false
}

func (s *Codecs) removeFollower(f *follower, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.followers, f)
	if h := s.hosts[name]; h != nil && h.follower == f {
		h.follower = nil
	}
}
