package redirect

import "fmt"

// Reason is one of the things that the programs count. The list stands in
// reasons.txt, from which C, Go and REASONS.md are made.
type Reason uint8

// Class tells the reasons apart by what became of the connect.
type Class uint8

// Classes of reasons.
const (
	ClassRedirected Class = iota // went to the proxy
	ClassDirect                  // went its own way
	ClassRefused                 // failed
	ClassAnswered                // a question of the proxy's, answered
	ClassUnanswered              // a question of the proxy's with no answer
)

func (c Class) String() string {
	return [...]string{"redirected", "direct", "refused", "answered", "unanswered"}[c]
}

type reasonText struct {
	name  string
	class Class
	help  string
}

// Reasons is the number of reasons; they are numbered from 0.
const Reasons = len(reasonTable)

// String is the reason's name, as in metrics: lower case with underscores.
func (r Reason) String() string { return reasonTable[r].name }

// Class of the reason.
func (r Reason) Class() Class { return reasonTable[r].class }

// Help explains the reason in a sentence.
func (r Reason) Help() string { return reasonTable[r].help }

// Counts holds all counters; Counts[ReasonRedirected].
type Counts [Reasons]uint64

// Counts reads the counters, summed over all CPUs, since the state was made.
func (r *Redirect) Counts() (Counts, error) {
	var sums Counts
	for i := range sums {
		var perCPU []uint64
		if err := r.maps["counts"].Lookup(uint32(i), &perCPU); err != nil {
			return sums, fmt.Errorf("reading counter %s: %w", Reason(i), err)
		}
		for _, n := range perCPU {
			sums[i] += n
		}
	}
	return sums, nil
}
