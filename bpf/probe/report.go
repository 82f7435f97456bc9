package probe

// A Report is what doctor --json prints.
type Report struct {
	OK       bool      `json:"ok"` // everything is there that watching needs
	Findings []Finding `json:"findings"`
	Facts    Facts     `json:"facts"`
}

// NewReport judges facts.
func NewReport(f Facts) Report { return Report{Watching(f) == nil, Check(f), f} }
