package redirect

import "fmt"

// A Reason is an event that the programs count. The list is in reasons.txt, from which the C
// header, the Go list and REASONS.md are generated.
type Reason uint8

// A Class groups reasons by what became of the connect.
type Class uint8

// Classes of reasons.
const (
	ClassRedirected Class = iota // went to the proxy
	ClassDirect                  // went direct
	ClassRefused                 // failed
	ClassAnswered                // a query of the proxy's that was answered
	ClassUnanswered              // a query of the proxy's that could not be answered
)

// String returns the class as in metrics.
func (c Class) String() string {
	return [...]string{"redirected", "direct", "refused", "answered", "unanswered"}[c]
}

// A reasonText is an entry of the generated list.
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

// Counts has all counters by reason: Counts[ReasonRedirected].
type Counts [Reasons]uint64

// Counts returns the counters, summed over all CPUs, since the pinned state was created, which
// may be before this process started.
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
