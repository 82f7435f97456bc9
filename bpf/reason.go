package bpf

// A Reason is an event that the programs count. The list is in reasons.txt, from which the C
// header, the Go list and REASONS.md are generated.
type Reason uint8

// A Class groups reasons by what they mean for the figures.
type Class uint8

// Classes of reasons.
const (
	ClassSeen    Class = iota // examined
	ClassIgnored              // not of a PS-lite job
	ClassLost                 // of a job, but not seen completely
)

func (c Class) String() string { return [...]string{"seen", "ignored", "lost"}[c] }

type reasonText struct {
	name  string
	class Class
	help  string
}

// Reasons is the number of reasons; they are numbered from 0.
const Reasons = len(reasonTable)

// String returns the reason's name as in metrics: lower case with underscores.
func (r Reason) String() string { return reasonTable[r].name }

// Class of the reason.
func (r Reason) Class() Class { return reasonTable[r].class }

// Help explains the reason in a sentence.
func (r Reason) Help() string { return reasonTable[r].help }

// A Count is how often a reason occurred and how many bytes it concerned.
type Count struct{ Events, Bytes uint64 }

// Counts has all counters by reason: Counts[ReasonRingFull].Events.
type Counts [Reasons]Count

// Lost sums the counters of class lost.
func (c *Counts) Lost() (sum Count) {
	for r := range c {
		if Reason(r).Class() == ClassLost {
			sum.Events += c[r].Events
			sum.Bytes += c[r].Bytes
		}
	}
	return sum
}
