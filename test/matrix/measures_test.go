package matrix

import (
	"bytes"
	"context"
	"math"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/psidecar/psidecar/planner/api"
	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/planner/plans"
	"github.com/psidecar/psidecar/proxy"
	"github.com/psidecar/psidecar/test/matrix/pattern"
)

// setting is a measure: flags of all proxies, and what happens meanwhile.
type setting struct {
	name   string
	flags  []string
	line   string                                 // of status, that says whether it holds
	lossy  bool                                   // pulls during the job may lack something
	again  int                                    // how often workers pull at the end until all has come
	rounds func(want float64, pushes int) float64 // how much rounding may leave out; nil: the end is exact
	moves  bool
	// happens is called once keys have moved, and then until it returns true.
	happens func(*pair, []proxy.State) bool
	// around is called each time that keys of all pairs that run have moved since the call before.
	around  func(turn int)
	without func(*pattern.Pattern) bool // pairs that are not run
}

// many is by how many keys' moves a measure that moves has had an effect; one during which something happens has it by
// some.
const many, some = 20, 5

// turns returns over how many calls of around a pair goes on.
func turns() int {
	if testing.Short() {
		return 1
	}
	return 2
}

// oneIn returns which part of the patterns is run.
func (s *setting) oneIn() int {
	switch {
	case testing.Short():
		return 10
	case s.moves && (s.happens != nil || s.around != nil) && !*update && *only == "":
		return 3
	case s.moves && s.name != "moves" && !*update && *only == "":
		return 2
	}
	return 1
}

// unsettled are reasons that hold for a moment, at the beginning.
var unsettled = []string{"no_connections", "not_ready", "untested", "first", "unheard", "alone", "not_set", "draining", "small"}

// meshOnly reports whether its flags imply --mesh-only.
func (s *setting) meshOnly() bool {
	return slices.Contains(s.flags, "--act") || slices.Contains(s.flags, "--placement")
}

// effective reports whether the measure has had an effect, or is off for good; it sets the cell.
func (s *setting) effective(x *pair, states []proxy.State) bool {
	l := x.line(states)
	if l == nil || l.On == 0 && s.line == measure.Carry {
		// Without anything that asks for the proxy connections go direct while the link is fast.
		return s.line == measure.Carry
	}
	if s.moves {
		return s.moved(x, states, l)
	}
	if l.On > 0 {
		if s.rounds != nil {
			x.cell = "rounded"
		}
		return true
	}
	return x.off(l)
}

// off sets the cell where a measure is off for good, once status says so.
func (x *pair) off(l *measure.Line) bool {
	if len(l.Not) == 0 || slices.ContainsFunc(l.Not, func(g measure.Gap) bool {
		return slices.Contains(unsettled, g.Reason) || g.Reason == "no_pushes" && !x.PushPull || g.Reason == "no_proxy" && x.Apart
	}) {
		return false
	}
	x.cell, x.why = "off: "+l.Not[0].Reason, l.Not[0].Why
	return x.said(x.why, func(at int) []string {
		return []string{"status", "--agent", "", "--proxy", "http://" + x.on[at].Address(9813)}
	})
}

// said reports whether a verb of psidecar, on one of the hosts, prints a text about the job.
func (x *pair) said(text string, verb func(at int) []string) bool {
	for at, h := range x.on {
		var out bytes.Buffer
		cmd := exec.Command(x.program, verb(at)...)
		cmd.Stdout = &out
		if h.Run(context.Background(), cmd) == nil && strings.Contains(out.String(), x.job) && strings.Contains(out.String(), text) {
			return true
		}
	}
	return false
}

// count adds up the keys that have moved, also over proxies that were replaced meanwhile, and returns how many requests
// there were lately.
func (x *pair) count(states []proxy.State) (requests uint64) {
	x.fleet.mu.Lock()
	defer x.fleet.mu.Unlock()
	for _, state := range states {
		for _, j := range state.Jobs {
			if j.Job == x.job {
				x.counted[state.Instance], requests = j.Moved, requests+j.Plain+j.Split
			}
		}
	}
	x.moved = 0
	for _, n := range x.counted {
		x.moved += n
	}
	return requests
}

// moved proposes moves until enough have come, or the planner says why they do not.
func (s *setting) moved(x *pair, states []proxy.State, l *measure.Line) bool {
	requests := x.count(states)
	enough := some
	if s.happens == nil && s.around == nil {
		enough = min(many, 2*len(x.KeyList())) // large values take long on a busy machine
	}
	switch {
	case x.settled:
		return x.outlasts()
	case x.moved >= uint64(enough) && (s.happens == nil || s.happens(x, states)) && x.outlasts():
		return true
	case x.ordered || requests < 20 || x.planner.Busy(x.job):
		return false
	case x.moved == 0:
		if reason := x.refused(); reason != "" {
			x.cell = "off: " + reason
			// Of single keys that stay only the planner tells.
			x.settled = (reason == "value" || l.On > 0 || x.off(l)) && x.said(x.why, func(int) []string { return []string{"plan", "show", "--planner", x.planner.Address, "--job", x.job} })
			if x.settled {
				return false
			} // else the other host has not been asked yet
		}
	}
	keys := x.KeyList()
	x.planner.Propose(x.rng, x.job, keys, min(len(keys), 40), x.Servers)
	return false
}

// displaced returns how many keys are not at home, by the proxy that says most.
func (x *pair) displaced(states []proxy.State) (most int) {
	for _, s := range states {
		for _, j := range s.Jobs {
			if j.Job == x.job {
				most = max(most, j.Displaced)
			}
		}
	}
	return most
}

// ends has keys move once more, and the plan end meanwhile as ordered; it reports whether nothing is under way any more.
func ends(what api.ActRequest_Action) func(*pair, []proxy.State) bool {
	return func(x *pair, states []proxy.State) bool {
		if !x.ordered {
			x.planner.Propose(x.rng, x.job, x.KeyList(), 40, x.Servers)
			x.ordered = x.planner.Order(x.job, what) == nil
			return false
		}
		return !x.planner.Busy(x.job) && (what != api.ActRequest_RESTORE || len(states) == len(x.proxies) && x.displaced(states) == 0)
	}
}

// refused returns why the newest plan's keys were not moved, empty while there is no reason; status and plan show say so.
func (x *pair) refused() string {
	var reasons []string
	x.planner.Do(func(s *plans.Service) {
		d, err := s.Describe(context.Background(), &api.DescribeRequest{Job: x.job})
		if err != nil || len(d.GetJobs()) == 0 {
			return
		}
		for _, e := range d.GetJobs()[0].GetEpochs() {
			var these []string
			left := e.GetKeys()
			if e.GetState() == api.Epoch_DONE { // of keys with two targets one is left over
				left -= e.GetPendingKeys()
			}
			for _, r := range e.GetRefused() {
				left -= r.GetKeys()
				these = append(these, r.GetReason())
				x.why = r.GetMessage()
			}
			// Keys that are busy now, or whose connections are not back yet, may be tried again, and those that a proxy
			// refused to which --handler was not given at that moment.
			later := []string{"busy", "past"}
			if slices.Contains(x.measure.flags, "--handler") {
				later = append(later, "handler")
			}
			if len(these) > 0 && left == 0 && !slices.ContainsFunc(these, func(r string) bool { return slices.Contains(later, r) }) {
				reasons = these
			}
		}
	})
	if len(reasons) == 0 {
		return ""
	}
	return strings.Join(slices.Compact(slices.Sorted(slices.Values(reasons))), ", ")
}

// measures returns all measures.
func (f *fleet) measures() []*setting {
	act := []string{"--act", "--planner", f.planner.Address}
	adds := append(slices.Clone(act), "--handler", "add")
	compact := []string{"--codec", "compact"}
	with := func(flags []string, more ...string) []string { return append(slices.Clone(flags), more...) }
	adding := func(p *pattern.Pattern) bool { return !p.Adds() }
	// Probes of keys that no worker pushes are answered at once, and say that such servers add; a move's push is not.
	unprobed := func(p *pattern.Pattern) bool { return p.Handler == pattern.Collect }
	return []*setting{
		{name: "auto", line: measure.Carry},
		{name: "compact, unchanged", line: measure.Unchanged, flags: with(compact, "--unchanged")},
		{name: "threshold until a step", line: measure.Threshold, lossy: true, without: func(p *pattern.Pattern) bool {
			return p.Handler == pattern.FTRL || p.Handler == pattern.Assign
		},
			flags: with(compact, "--threshold", "0.9", "--threshold-until", "30", "--threshold-lifespan", "5", "--same-host", "--char-values", "float32")},
		{name: "quantize", line: measure.Quantize, lossy: true, flags: with(compact, "--quantize", "8", "--same-host", "--char-values", "float32"),
			rounds: func(_ float64, pushes int) float64 { return 21.0 / 127 * float64(pushes) }},
		{name: "wire", line: measure.Wire, lossy: true, flags: with(compact, "--wire", "bf16", "--same-host", "--char-values", "float32"),
			rounds: func(want float64, _ int) float64 { return math.Abs(want) / 256 }},
		{name: "pull-threshold", line: measure.PullThreshold, lossy: true, again: 60, flags: with(compact, "--pull-threshold", "0.9", "--same-host", "--char-values", "float32")},
		{name: "slim", line: measure.Slim, lossy: true, flags: with(compact, "--slim", "0.3,0.15", "--same-host", "--char-values", "float32"),
			rounds: func(want float64, _ int) float64 { return math.Abs(want) }},
		{name: "sums", line: measure.Aggregate, flags: with(compact, "--aggregate", "host", "--aggregate-least", "1", "--handler", "add"), without: adding},
		{name: "sums with a wait", line: measure.Aggregate, flags: with(compact, "--aggregate", "host", "--aggregate-least", "1", "--aggregate-wait", "5ms", "--handler", "add"), without: adding},
		{name: "placement", line: measure.Placement, flags: []string{"--placement", f.file}},
		{name: "moves", line: measure.Moves, flags: adds, moves: true, without: adding},
		{name: "moves, probed", line: measure.Moves, flags: with(act, "--allow-probe"), moves: true, without: unprobed},
		{name: "sums and moves", line: measure.Moves, flags: with(adds, "--codec", "compact", "--aggregate", "host", "--aggregate-least", "1"), moves: true, without: adding},
		{name: "restore", line: measure.Moves, flags: adds, moves: true, without: adding, happens: ends(api.ActRequest_RESTORE)},
		{name: "rollback", line: measure.Moves, flags: adds, moves: true, without: adding, happens: ends(api.ActRequest_ROLLBACK)},
		{name: "planner restarted", line: measure.Moves, flags: adds, moves: true, without: adding, around: func(int) { f.planner.Again(func() {}) }},
		{name: "proxies replaced", line: measure.Moves, flags: adds, moves: true, without: adding, around: func(turn int) {
			p := f.proxies[turn%2]
			p.Replace(p.Args()...)
		}},
		{name: "act taken away", line: measure.Moves, flags: adds, moves: true, without: adding, around: func(turn int) {
			at := turn % 2
			f.proxies[at].Replace(f.args(at, []string{"--planner", f.planner.Address})...)
			f.proxies[at].Replace(f.args(at, adds)...)
		}},
		{name: "split", line: measure.Split, flags: with(adds, "--split", "2"), without: func(p *pattern.Pattern) bool { return p.Keys[0].Pulled() < 1<<20 }},
	}
}
