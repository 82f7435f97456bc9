package prerun

import (
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/psidecar/psidecar/planner/partition"
)

// A Cost is what a partition took in time and memory. It is measured around the algorithm, so
// reading the data counts in the memory, which is a peak, but not in the time.
type Cost struct {
	// ProcessorSeconds is of all cores, without reading the data.
	ProcessorSeconds float64 `json:"processor_seconds"`
	// PeakBytes is the largest memory of the process so far, with reading and the graph; 0 if the
	// system does not report it.
	PeakBytes int64 `json:"peak_bytes"`
	// BytesPerEdge is PeakBytes divided by the graph's edges.
	BytesPerEdge float64 `json:"bytes_per_edge"`
	Phases       []Phase `json:"phases,omitempty"`

	seconds float64
}

// A Phase is one part of an algorithm's work, in wall time and in processor time of all cores.
type Phase struct {
	Name             string  `json:"name"`
	Seconds          float64 `json:"seconds"`
	ProcessorSeconds float64 `json:"processor_seconds"`
}

// A meter measures the phases that an algorithm reports through [partition.Options.Phase]. Phases
// do not nest: each ends with the beginning of the next.
type meter struct {
	began, phase time.Time
	cpu, atPhase time.Duration
	name         string
	cost         Cost
}

func newMeter() *meter {
	cpu, _ := usage()
	now := time.Now()
	return &meter{began: now, phase: now, cpu: cpu, atPhase: cpu}
}

// begin ends the present phase, if there is one, and begins another.
func (m *meter) begin(name string) {
	cpu, _ := usage()
	now := time.Now()
	if m.name != "" {
		m.cost.Phases = append(m.cost.Phases, Phase{m.name, now.Sub(m.phase).Seconds(), (cpu - m.atPhase).Seconds()})
	}
	m.name, m.phase, m.atPhase = name, now, cpu
}

// end ends the last phase and returns the cost of everything, for a graph with that many edges.
func (m *meter) end(edges int64) Cost {
	m.begin("")
	// The peak is of the whole process. It is read last, so that owners and checks are in it.
	cpu, peak := usage()
	m.cost.ProcessorSeconds = (cpu - m.cpu).Seconds()
	m.cost.PeakBytes, m.cost.BytesPerEdge = peak, float64(peak)/float64(max(edges, 1))
	m.cost.seconds = time.Since(m.began).Seconds()
	return m.cost
}

// Took returns the wall time of the algorithm.
func (c *Cost) Took() time.Duration { return time.Duration(c.seconds * float64(time.Second)) }

// Table prints the cost for people: memory, and for each phase its time and how many cores it kept
// busy.
func (c *Cost) Table(w io.Writer) error {
	var text strings.Builder
	fmt.Fprintf(&text, "memory: %.0f MiB at most, with the graph and its reading: %.1f bytes an edge; %.1f s of processor time\n",
		float64(c.PeakBytes)/(1<<20), c.BytesPerEdge, c.ProcessorSeconds)
	for i, p := range c.Phases {
		separator := ", "
		if i == 0 {
			separator = "phases: "
		}
		fmt.Fprintf(&text, "%s%s %.1f s on %.1f cores", separator, p.Name, p.Seconds, p.ProcessorSeconds/max(p.Seconds, 1e-9))
	}
	if len(c.Phases) > 0 {
		text.WriteString("\n")
	}
	_, err := io.WriteString(w, text.String())
	return err
}

// A Moved counts how far a partition is from the earlier one that it continues.
type Moved struct {
	Samples         int `json:"samples"` // that the earlier partition had
	SamplesMoved    int `json:"samples_moved"`
	Parameters      int `json:"parameters"`
	ParametersMoved int `json:"parameters_moved"`
}

// CountMoved compares a with the assignment from which it continued. Samples and parameters that
// from does not have, which are -1 in it, are not counted.
func CountMoved(from, a *partition.Assignment) *Moved {
	m := new(Moved)
	count := func(from, to []int32) (known, moved int) {
		for i, machine := range from {
			if machine >= 0 {
				known++
				if machine != to[i] {
					moved++
				}
			}
		}
		return known, moved
	}
	m.Samples, m.SamplesMoved = count(from.Samples, a.Samples)
	m.Parameters, m.ParametersMoved = count(from.Params, a.Params)
	return m
}

// Table prints what has moved, for people.
func (m *Moved) Table(w io.Writer, r *Report) error {
	_, err := fmt.Fprintf(w, "of %d earlier samples %d move (%.1f%%), of %d earlier parameters %d (%.1f%%); %d samples and %d parameters are new\n",
		m.Samples, m.SamplesMoved, percent(m.SamplesMoved, m.Samples),
		m.Parameters, m.ParametersMoved, percent(m.ParametersMoved, m.Parameters),
		r.Samples-m.Samples, r.Parameters-m.Parameters)
	return err
}

func percent(a, b int) float64 { return 100 * float64(a) / float64(max(b, 1)) }
