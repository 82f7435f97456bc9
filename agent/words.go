package agent

import (
	"fmt"
	"strings"
	"time"

	"github.com/psidecar/psidecar/internal/page"
)

// Text describes the stall in words, without its duration.
func (s *stall) Text() string {
	var b strings.Builder
	b.WriteString(s.Who)
	switch s.Kind {
	case page.Unanswered:
		b.WriteString(" waits for " + s.On)
		if s.Keys != "" {
			b.WriteString(", " + s.Keys)
		}
		if s.Bytes > 0 {
			b.WriteString(", request of " + page.BytesText(float64(s.Bytes)))
		}
	case page.Silent:
		b.WriteString(" sends no requests and waits for no answer")
	case page.AtBarrier:
		b.WriteString(" waits at a barrier that others have not reached")
	case page.Late:
		b.WriteString(" answers late")
	case page.Straggling:
		b.WriteString(" delays the others")
	}
	if s.Why != "" {
		b.WriteString(": " + s.Why)
	}
	return b.String()
}

// ago formats a duration in a single unit, rounded down.
func ago(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < 2*time.Minute:
		return fmt.Sprintf("%d s", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%d min", int(d.Minutes()))
	}
	return fmt.Sprintf("%d h", int(d.Hours()))
}
