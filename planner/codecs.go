package planner

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/store"
)

// Bounds on the state of a Codecs.
const (
	// MaxCodecJobs is how many jobs may have rules.
	MaxCodecJobs = 1024
	// MaxCodecRules is how many bytes the rules of a job may have.
	MaxCodecRules = 64 << 10
	// MaxCodecHosts is how many hosts' proxies may follow.
	MaxCodecHosts = 4096
	// MaxAdvice is how many jobs a host may give advice on.
	MaxAdvice = 16
	// MaxCandidates is how many codecs a job's advice may compare.
	MaxCandidates = 64
	// MaxMeasures is how many lines on measures are kept of a host, and MaxGaps how many reasons
	// each may have.
	MaxMeasures = 1024
	MaxGaps     = 16
	// MaxCodecMemory is how much memory the newest reports of all hosts' proxies may take.
	MaxCodecMemory = 512 << 20
)

// codecPrefix begins the names of the store's entries with rules for values; the name of the job
// follows.
const codecPrefix = "codecs/"

// A Codecs keeps the rules for codecs and the reports of the proxies that apply them. It implements
// api.CodecsServer. Its methods may be called from any goroutine.
//
// mu is held while rules are written to the store. So versions, the store and what followers are
// sent have one order, and no follower gets a rule that a restart would forget.
type Codecs struct {
	api.UnimplementedCodecsServer

	// Jobs, if not nil, maps the scheduler's addresses of the jobs that hosts report to their
	// names. Scheduler maps a name to the address, and returns any other text unchanged. Both are
	// set together, before the first call.
	Jobs      func() map[string]string
	Scheduler func(string) string
	// Runs, if not nil, returns what agents report of a job's processes. It is set before the first
	// call.
	Runs func(job string) JobProcesses
	// Memory is how much memory the newest reports of all hosts may take; 0 means MaxCodecMemory.
	// It is set before the first call.
	Memory int

	store store.Store
	now   func() time.Time

	mu sync.Mutex // guards the rest
	// Rules for values by job, as JSON that the planner does not interpret.
	rules map[string]string
	// Rules on sums by job, as JSON of package planner/api/measure.
	sums map[string]string
	// Rules for values that hold for a run, by job; in the store under runPrefix.
	forRun map[string]*forRun
	// version rises with each change of rules or sums. It starts at 1 in each process: a proxy that
	// reconnects is sent all rules, takes them up whatever their version, and reports which.
	version   uint64
	hosts     map[string]*host
	memory    int // that the reports of hosts take
	followers map[*follower]bool
	// The newest trial, which ends at until.
	trial *api.CodecTrial
	until time.Time
}

// NewCodecs returns a Codecs with the rules in the store, which it does not close.
func NewCodecs(ctx context.Context, kept store.Store) (*Codecs, error) {
	s := &Codecs{store: kept, now: time.Now, rules: map[string]string{}, sums: map[string]string{}, forRun: map[string]*forRun{}, version: 1, hosts: map[string]*host{}, followers: map[*follower]bool{}}
	err := kept.Each(ctx, func(name string, value []byte) error {
		if job, ok := strings.CutPrefix(name, codecPrefix); ok {
			s.rules[job] = string(value)
		}
		if job, ok := strings.CutPrefix(name, sumsPrefix); ok {
			s.sums[job] = string(value)
		}
		if job, ok := strings.CutPrefix(name, runPrefix); ok {
			r := &forRun{}
			if err := json.Unmarshal(value, r); err != nil {
				slog.Warn("cannot read until when a job's codec rules hold; they hold until they are changed", "job", job, "error", err)
				return nil
			}
			s.forRun[job] = r
		}
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("reading the rules for values: %w", err)
	}
	return s, nil
}

// Set implements api.CodecsServer. It returns when the rules are in the store; proxies are notified
// after that.
func (s *Codecs) Set(ctx context.Context, r *api.JobRules) (*api.CodecsSet, error) {
	if err := check(r); err != nil {
		return nil, status.Error(codes.InvalidArgument, err.Error())
	}
	began := s.beginRun(r)
	s.mu.Lock()
	defer s.mu.Unlock()
	if before := s.forRun[r.GetJob()]; before != nil && began != nil && before.Rules == s.rules[r.GetJob()] {
		began.Later = before.Later // the rules in between were for the run as well
	}
	entry, err := began.entry(r.GetJob())
	if err != nil {
		return nil, status.Error(codes.Internal, err.Error())
	}
	set, err := s.set(ctx, s.rules, codecPrefix, r, entry)
	switch {
	case err != nil:
	case began != nil:
		s.forRun[r.GetJob()] = began
	default:
		delete(s.forRun, r.GetJob())
	}
	return set, err
}

// set writes a job's rules to the store under prefix, with more entries, then puts them among all
// and wakes the followers. Empty rules remove the job's. The caller holds s.mu.
func (s *Codecs) set(ctx context.Context, all map[string]string, prefix string, r *api.JobRules, more ...store.Entry) (*api.CodecsSet, error) {
	// The texts are compared, not versions: those begin anew with each process.
	if r.GetCompare() && r.GetBefore() != all[r.GetJob()] {
		return nil, status.Errorf(codes.Aborted, "the rules of job %s have been changed by somebody else since they were read: look at them and repeat the change", r.GetJob())
	}
	if _, known := all[r.GetJob()]; !known && r.GetRules() != "" && len(all) >= MaxCodecJobs {
		return nil, status.Errorf(codes.ResourceExhausted, "%d jobs already have rules: clear those of ended jobs", MaxCodecJobs)
	}
	entry := store.Entry{Name: prefix + r.GetJob()}
	if r.GetRules() != "" {
		entry.Value = []byte(r.GetRules())
	}
	// The write goes on if the caller goes away, so that store and memory cannot differ.
	if err := s.store.Write(context.WithoutCancel(ctx), append(more, entry)); err != nil {
		return nil, status.Error(codes.Unavailable, err.Error())
	}
	if r.GetRules() == "" {
		delete(all, r.GetJob())
	} else {
		all[r.GetJob()] = r.GetRules()
	}
	s.version++
	s.wake()
	return &api.CodecsSet{Version: s.version}, nil
}

// check returns the first fault of rules that the planner can see. Proxies report whether they can
// apply them.
func check(r *api.JobRules) error {
	if r.GetJob() == "" || len(r.GetJob()) > 256 || strings.ContainsRune(r.GetJob(), 0) {
		return fmt.Errorf("job %.300q: want its name, or its scheduler's host:port", r.GetJob())
	}
	for _, rules := range []string{r.GetRules(), r.GetLater()} {
		if len(rules) > MaxCodecRules {
			return fmt.Errorf("rules for job %s: %d bytes, at most %d fit", r.GetJob(), len(rules), MaxCodecRules)
		}
		var list []json.RawMessage
		if rules == "" {
			continue
		}
		if err := json.Unmarshal([]byte(rules), &list); err != nil || len(list) == 0 {
			return fmt.Errorf("rules for job %s: want a JSON list with at least one rule: %v", r.GetJob(), err)
		}
	}
	return nil
}

// allRules returns the rules of one job, or of all if job is "". The caller holds s.mu.
func (s *Codecs) allRules(job string) *api.CodecRules {
	of := func(rules map[string]string) (all []*api.JobRules) {
		for _, name := range slices.Sorted(maps.Keys(rules)) {
			if job == "" || job == name {
				all = append(all, &api.JobRules{Job: name, Rules: rules[name]})
			}
		}
		return all
	}
	all := &api.CodecRules{Version: s.version, Jobs: of(s.rules), Sums: of(s.sums)}
	for _, j := range all.GetJobs() {
		if r := s.forRun[j.GetJob()]; r != nil {
			j.ForRun, j.Later = true, r.Later
		}
	}
	return all
}

// Try implements api.CodecsServer. It starts a trial on all following proxies and returns at once.
// Only one trial runs at a time, since it costs the proxies processor time.
func (s *Codecs) Try(_ context.Context, r *api.TryCodecs) (*api.CodecTrial, error) {
	seconds := cmp.Or(r.GetSeconds(), 10)
	if seconds > 60 {
		return nil, status.Errorf(codes.InvalidArgument, "trying codecs for %d seconds: want 1 to 60", seconds)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	switch now := s.now(); {
	case len(s.followers) == 0:
		return nil, status.Error(codes.FailedPrecondition, "no proxy follows this planner: start psidecar up or psidecar proxy --planner on the job's hosts")
	case now.Before(s.until):
		return nil, status.Errorf(codes.FailedPrecondition, "codecs are being tried already, for %.0f seconds more", s.until.Sub(now).Seconds())
	}
	// Not from 1 in each process: who still waits for a trial of the planner before would take this
	// one for it.
	number := max(s.trial.GetNumber()+1, uint64(s.now().UnixNano()))
	s.trial = &api.CodecTrial{Number: number, Seconds: seconds}
	s.until = s.now().Add(time.Duration(seconds) * time.Second)
	s.wake()
	return s.trial, nil
}

// Describe implements api.CodecsServer. Advice is the sum over the hosts that have finished the
// newest trial. A follower that has ended is listed with its last report.
func (s *Codecs) Describe(_ context.Context, r *api.DescribeRulesRequest) (*api.CodecsDescription, error) {
	reported, scheduler := s.reported(), r.GetJob()
	if s.Scheduler != nil && scheduler != "" {
		scheduler = s.Scheduler(scheduler)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	d := &api.CodecsDescription{Jobs: s.known(reported, r.GetJob()), Rules: s.allRules(r.GetJob()), Trial: s.trial, LeftSeconds: max(0, s.until.Sub(s.now()).Seconds())}
	sums := map[string]*api.CodecAdvice{}
	for _, name := range slices.Sorted(maps.Keys(s.hosts)) {
		h := s.hosts[name]
		d.Followers = append(d.Followers, &api.CodecFollower{
			Host: name, Following: h.follower != nil, Version: h.report.GetVersion(), Refused: h.report.GetRefused(),
			Trial: h.report.GetTrial(), Untried: h.report.GetUntried(),
			Measures: measuresOf(h, scheduler),
		})
		if h.report.GetTrial() != s.trial.GetNumber() {
			continue
		}
		for _, a := range h.report.GetAdvice() {
			if r.GetJob() == "" || scheduler == a.GetJob() {
				sums[a.GetJob()] = add(sums[a.GetJob()], a)
			}
		}
	}
	for _, job := range slices.Sorted(maps.Keys(sums)) {
		d.Advice = append(d.Advice, sums[job])
	}
	return d, nil
}

// add adds what a host says of a job to a sum, which may be nil, and returns the sum. It does not
// change a.
func add(sum, a *api.CodecAdvice) *api.CodecAdvice {
	if sum == nil {
		sum = &api.CodecAdvice{Job: a.GetJob()}
	}
	sum.Hosts++
	sum.Seconds = max(sum.GetSeconds(), a.GetSeconds())
	sum.Pushes += a.GetPushes()
	sum.PushBytes += a.GetPushBytes()
	sum.PullBytes += a.GetPullBytes()
	sum.Missed += a.GetMissed()
	sum.StepSquares += a.GetStepSquares()
	sum.CharValues = cmp.Or(sum.GetCharValues(), a.GetCharValues())
	sum.UntypedBytes += a.GetUntypedBytes()
	for _, c := range a.GetCandidates() {
		at := slices.IndexFunc(sum.GetCandidates(), func(o *api.CodecCandidate) bool { return o.GetCodec() == c.GetCodec() })
		if at < 0 {
			at = len(sum.GetCandidates())
			sum.Candidates = append(sum.Candidates, &api.CodecCandidate{Codec: c.GetCodec()})
		}
		o := sum.Candidates[at]
		o.PushBytes += c.GetPushBytes()
		o.PullBytes += c.GetPullBytes()
		o.WaitingSquares += c.GetWaitingSquares()
	}
	return sum
}
