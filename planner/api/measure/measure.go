// Package measure has the words in which agents, proxies and planner say of a
// job which of psidecar's measures hold for it, on how many of its connections,
// and why not for the others. It is known to all parts; it has no state.
//
// # Sums
//
// A [SumRule] decides whether pushes of a host's workers are summed before they leave
// it, by ranges of keys; the first rule that covers a key counts. The planner hands
// the rules out for each job, proxies follow them.
package measure

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// The measures, in the order in which they are shown.
const (
	Observe       = "observe"               // the agent counts its messages
	Carry         = "carry"                 // its connections go over a link between proxies
	Compact       = "compact"               // without loss, in fewer bytes
	Unchanged     = "unchanged"             // values that the worker has already are left out
	Threshold     = "threshold"             // small gradients wait
	Slim          = "slim"                  // only a share of the values goes
	Quantize      = "quantize"              // pushed values are rounded
	PullThreshold = "pull-threshold"        // of pulls what differs most goes
	PullQuantize  = "pull-quantize"         // what pulls differ by is rounded
	Activations   = "threshold-activations" // of activations and their gradients the largest of each row go
	Wire          = "wire"                  // values go as numbers of 16 bits
	Aggregate     = "aggregate"             // pushes of a host's workers are summed
	Placement     = "placement"             // keys are where a file says, from the start
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

// NotSet is the reason of a measure that nobody asked for.
const NotSet = "not_set"

// Asked is the source of a measure that the job's owner asked for, by annotations of its
// pods or in its environment.
const Asked = "the job's owner"

// Barriers is a reason that keeps no connection from having a measure: part of what
// it holds back may be lost at the job's end.
const Barriers = "barriers"

// Line says where one measure holds for one job, on one host or on several.
type Line struct {
	Job     string `json:"job,omitempty"` // scheduler's host:port; empty: not known
	Measure string `json:"measure"`
	State   string `json:"state"`             // on, part or off
	Setting string `json:"setting,omitempty"` // what was asked for: 0.99, 8 bits
	From    string `json:"from,omitempty"`    // source: flags (or the configuration file), planner, the job's owner
	// On is on how many Connections of the job it holds, of those that its
	// processes on these hosts made.
	On          int   `json:"on"`
	Connections int   `json:"connections"`
	Not         []Gap `json:"not"` // why it does not hold on the others, most first
}

// Gap is a reason for which a measure does not hold.
type Gap struct {
	Reason      string `json:"reason"`      // a word for metrics, from a fixed list
	Connections int    `json:"connections"` // 0: it is the measure as a whole that does not hold
	Why         string `json:"why"`         // a sentence's part
	Do          string `json:"do,omitempty"`
}

// Judge sets the state by the counts, and puts the gaps in order.
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

// Lack adds a reason, or connections to it.
func (l *Line) Lack(g Gap) {
	for i := range l.Not {
		if n := &l.Not[i]; n.Reason == g.Reason && n.Why == g.Why {
			n.Connections += g.Connections
			return
		}
	}
	l.Not = append(l.Not, g)
}

// String is the line's state in words: on (flags: 0.99), 3 of 4 connections.
func (l *Line) String() string {
	var b strings.Builder
	b.WriteString(l.State)
	if l.Setting != "" {
		fmt.Fprintf(&b, " (%s)", strings.TrimPrefix(l.From+": "+l.Setting, ": "))
	}
	if l.Connections > 0 && (l.State != Off || l.Setting != "") {
		fmt.Fprintf(&b, ", %d of %d connections", l.On, l.Connections)
	}
	return b.String()
}

// String is a gap in words.
func (g *Gap) String() string {
	text := g.Why
	if g.Connections > 0 {
		text = fmt.Sprintf("%d not: %s", g.Connections, text)
	}
	if g.Do != "" {
		text += ": " + g.Do
	}
	return text
}

// maxGaps bounds the reasons of a line that is a sum: sentences may name hosts.
const maxGaps = 8

// Sum adds up what several hosts say, a line for each job and measure.
func Sum(hosts ...[]Line) []Line {
	var all []Line
	for _, lines := range hosts {
		for _, l := range lines {
			at := slices.IndexFunc(all, func(o Line) bool { return o.Job == l.Job && o.Measure == l.Measure })
			if at < 0 {
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

func (l *Line) addLine(o *Line) {
	l.On += o.On
	l.Connections += o.Connections
	switch {
	case l.Setting == "":
		l.Setting, l.From = o.Setting, o.From
	case o.Setting != "" && o.Setting != l.Setting:
		l.Setting = "differs from host to host"
	}
	if o.From != "" && o.From != l.From {
		all := append(strings.Split(l.From, " and "), strings.Split(o.From, " and ")...)
		slices.Sort(all)
		l.From = strings.TrimPrefix(strings.Join(slices.Compact(all), " and "), " and ")
	}
	for _, g := range o.Not {
		l.Lack(g)
	}
}

// settle drops what only one host's view made true: a measure that is asked for
// somewhere is no longer one that nobody asked for.
func (l *Line) settle() {
	if l.On > 0 {
		l.Not = slices.DeleteFunc(l.Not, func(g Gap) bool { return g.Connections == 0 && g.Reason != Barriers })
	}
	l.Judge()
	l.Not = l.Not[:min(len(l.Not), maxGaps)]
}

// Sort puts lines in order of jobs, then of measures.
func Sort(lines []Line) {
	slices.SortStableFunc(lines, func(a, b Line) int {
		return cmp.Or(strings.Compare(a.Job, b.Job), cmp.Compare(slices.Index(All, a.Measure), slices.Index(All, b.Measure)))
	})
}

// Of returns the lines of a job; those of no known job where it is the only one.
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
