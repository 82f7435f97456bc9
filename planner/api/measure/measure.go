// Package measure has the vocabulary in which agents, proxies and planner report which of
// psidecar's measures hold for a job, on how many of its connections, and why not on the others. It
// has no state. All parts import it, so that a measure has one name everywhere.
//
// A [Line] is the state of one measure for one job, on one host or summed over several ([Sum]); a
// [Gap] is a reason for which it does not hold.
//
// # Sums
//
// A [SumRule] decides, for a range of keys, whether the pushes of a host's workers are summed
// before they leave it. The first rule that covers a key counts. The planner distributes the rules
// of each job; proxies follow them.
package measure

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
)

// The measures, in the order in which they are shown.
const (
	Observe       = "observe"               // the agent counts its messages
	Carry         = "carry"                 // its connections go over a link between proxies
	Compact       = "compact"               // without loss, in fewer bytes
	Unchanged     = "unchanged"             // values that the worker has already are left out
	Threshold     = "threshold"             // small gradients are held back
	Slim          = "slim"                  // only a fraction of the values is sent
	Quantize      = "quantize"              // pushed values are rounded
	PullThreshold = "pull-threshold"        // of pulled values only those that differ most are sent
	PullQuantize  = "pull-quantize"         // differences of pulled values are rounded
	Activations   = "threshold-activations" // only the largest activations and gradients of each row are sent
	Wire          = "wire"                  // values are sent in 16 bits
	Aggregate     = "aggregate"             // pushes of a host's workers are summed
	Placement     = "placement"             // keys are placed by a file from the start
	Moves         = "moves"                 // keys move as the planner plans
	Split         = "split"                 // large values are in parts on several servers
)

// All lists the measures.
var All = []string{Observe, Carry, Compact, Unchanged, Threshold, Slim, Quantize, PullThreshold, PullQuantize, Activations, Wire, Aggregate, Placement, Moves, Split}

// The states of a measure.
const (
	On   = "on"   // on all connections
	Part = "part" // on some
	Off  = "off"
)

// NotSet is the reason of a measure that was not requested.
const NotSet = "not_set"

// Draining is the reason of a threshold that psidecar plan codecs drain ends.
const Draining = "drain"

// Asked is the source of a measure that the job's owner requests, by annotations of its pods or in
// its environment.
const Asked = "the job's owner"

// Barriers is a reason that does not keep connections from having a measure: part of what the
// measure holds back may be lost at the end of the job.
const Barriers = "barriers"

// A Line says where one measure holds for one job, on one host or on several.
type Line struct {
	Job     string `json:"job,omitempty"` // scheduler's host:port; empty: not known
	Measure string `json:"measure"`
	State   string `json:"state"`             // on, part or off
	Setting string `json:"setting,omitempty"` // what was asked for: 0.99, 8 bits
	// From is the source: flags (or the configuration file), planner, or the job's owner.
	From string `json:"from,omitempty"`
	// On is the number of the job's connections on which it holds, of the Connections that its
	// processes on these hosts have made.
	On          int   `json:"on"`
	Connections int   `json:"connections"`
	Not         []Gap `json:"not"` // why it does not hold on the others, most first
	// HeldValues is how many values a threshold holds back, HeldSquares and StepSquares are the
	// sums of the squares of these and of what one step pushes.
	HeldValues  uint64  `json:"held_values,omitempty"`
	HeldSquares float64 `json:"held_squares,omitempty"`
	StepSquares float64 `json:"step_squares,omitempty"`
}

// A Gap is a reason for which a measure does not hold, on a number of connections.
type Gap struct {
	Reason      string `json:"reason"`       // a word for metrics, from a fixed list
	Connections int    `json:"connections"`  // 0: the measure as a whole does not hold
	Why         string `json:"why"`          // part of a sentence
	Do          string `json:"do,omitempty"` // what changes that, another part; empty: there is nothing to do
}

// Judge sets the state from the counts and sorts the gaps, those of most connections first.
func (l *Line) Judge() {
	switch {
	case l.On == 0:
		l.State = Off
	case l.On < l.Connections:
		l.State = Part
	default:
		l.State = On
	}
	if l.Not == nil {
		l.Not = []Gap{}
	}
	slices.SortStableFunc(l.Not, func(a, b Gap) int {
		return cmp.Or(cmp.Compare(b.Connections, a.Connections), strings.Compare(a.Reason, b.Reason))
	})
}

// Lack adds a gap, or its connections to an equal one.
func (l *Line) Lack(g Gap) {
	for i := range l.Not {
		// Equal words only: the same reason may have different explanations on different hosts.
		if n := &l.Not[i]; n.Reason == g.Reason && n.Why == g.Why {
			n.Connections += g.Connections
			return
		}
	}
	l.Not = append(l.Not, g)
}

// Steps returns how many steps' gradient is held back: the norm of what is over that of what one
// step pushes. ok is false where neither is known yet, or the model has diverged.
func (l *Line) Steps() (steps float64, ok bool) {
	steps = math.Sqrt(l.HeldSquares / l.StepSquares)
	return steps, l.StepSquares > 0 && steps-steps == 0
}

// String returns the line's state in words: on (flags: 0.99), 3 of 4 connections; 1.5 steps'
// gradient is held back.
func (l *Line) String() string {
	var b strings.Builder
	b.WriteString(l.State)
	if l.Setting != "" {
		fmt.Fprintf(&b, " (%s)", strings.TrimPrefix(l.From+": "+l.Setting, ": "))
	}
	if l.Connections > 0 && (l.State != Off || l.Setting != "") {
		fmt.Fprintf(&b, ", %d of %d connections", l.On, l.Connections)
	}
	if steps, ok := l.Steps(); ok {
		fmt.Fprintf(&b, "; %.1f steps' gradient is held back", steps)
	} else if l.HeldValues > 0 {
		fmt.Fprintf(&b, "; %d values are held back", l.HeldValues)
	}
	return b.String()
}

// Lacks reports whether the line has a gap with a reason.
func (l *Line) Lacks(reason string) bool {
	return slices.ContainsFunc(l.Not, func(g Gap) bool { return g.Reason == reason })
}

// String is a gap in words.
func (g *Gap) String() string {
	text := g.Why
	if g.Connections > 0 {
		text = fmt.Sprintf("%d not: %s", g.Connections, text)
	}
	if g.Do != "" {
		text += "; " + g.Do
	}
	return text
}

// maxGaps bounds the gaps of a summed line; their sentences may name hosts.
const maxGaps = 8

// Sum adds up what several hosts report, to one line for each job and measure. It does not change
// its arguments.
func Sum(hosts ...[]Line) []Line {
	var all []Line
	for _, lines := range hosts {
		for _, l := range lines {
			at := slices.IndexFunc(all, func(o Line) bool { return o.Job == l.Job && o.Measure == l.Measure })
			if at < 0 {
				// The caller's gaps must not be merged into.
				l.Not = slices.Clone(l.Not)
				all = append(all, l)
				continue
			}
			all[at].addLine(&l)
		}
	}
	for i := range all {
		all[i].settle()
	}
	Sort(all)
	return all
}

// addLine adds another host's line of the same job and measure.
func (l *Line) addLine(o *Line) {
	l.On += o.On
	l.Connections += o.Connections
	l.HeldValues += o.HeldValues
	l.HeldSquares += o.HeldSquares
	l.StepSquares += o.StepSquares
	switch {
	case l.Setting == "":
		l.Setting, l.From = o.Setting, o.From
	case o.Setting != "" && o.Setting != l.Setting:
		l.Setting = "differs between hosts"
	}
	if o.From != "" && o.From != l.From {
		// The source of a sum lists every host's, each once, in a fixed order.
		all := append(strings.Split(l.From, " and "), strings.Split(o.From, " and ")...)
		slices.Sort(all)
		l.From = strings.TrimPrefix(strings.Join(slices.Compact(all), " and "), " and ")
	}
	for _, g := range o.Not {
		l.Lack(g)
	}
}

// settle drops gaps that were true on one host only: a measure that holds somewhere is not one that
// nobody has requested.
func (l *Line) settle() {
	if l.On > 0 {
		l.Not = slices.DeleteFunc(l.Not, func(g Gap) bool { return g.Connections == 0 && g.Reason != Barriers })
	}
	l.Judge()
	l.Not = l.Not[:min(len(l.Not), maxGaps)]
}

// Sort sorts lines by job, then in the order of [All].
func Sort(lines []Line) {
	slices.SortStableFunc(lines, func(a, b Line) int {
		return cmp.Or(strings.Compare(a.Job, b.Job), cmp.Compare(slices.Index(All, a.Measure), slices.Index(All, b.Measure)))
	})
}

// Of returns the summed lines of a job. If it is the only one, lines of no known job count as its
// own.
func Of(lines []Line, job string, only bool) []Line {
	var of []Line
	for _, l := range lines {
		if l.Job == job || only && l.Job == "" {
			l.Job = job
			of = append(of, l)
		}
	}
	return Sum(of)
}
