package proxy

import (
	"fmt"
	"strconv"

	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/jobs"
)

// splitLine returns the line on large values in parts: into how many, and by which measured
// steps that was found. It holds once a key is in parts.
func (p *Proxy) splitLine(job string, all []carried) measure.Line {
	s, ok := p.routed()[job]
	if !ok || s.InParts == nil {
		return p.routedLine(job, measure.Split, "", all, &measure.Gap{Reason: measure.NotSet, Why: "large values are whole, each on one server", Do: "set --split of psidecar up and proxy, with --act, on all hosts before the job starts"})
	}
	in := s.InParts
	l := p.routedLine(job, measure.Split, "--split "+splitWanted(in), all, nil)
	if in.Not.Reason != "" {
		l.Lack(measure.Gap{Reason: in.Not.Reason, Why: in.Not.Why, Do: in.Not.Do})
	}
	// The flag is set and connections are carried, but nothing is in parts yet.
	if in.Keys == 0 {
		l.On = 0
		l.Judge()
	}
	return l
}

// splitWanted describes the setting of --split and its effect.
func splitWanted(in *jobs.PartsState) string {
	text := strconv.Itoa(in.Wanted)
	if in.Wanted == jobs.AutoParts {
		text = "auto"
	}
	if in.Keys > 0 {
		text += fmt.Sprintf(", %d keys in parts", in.Keys)
	}
	if in.Wanted != jobs.AutoParts || in.Target == 0 {
		return text
	}
	text += fmt.Sprintf(", P = %d", in.Target)
	for i, m := range in.Samples {
		if i == 0 {
			text += " after steps of"
		}
		text += fmt.Sprintf(" %.3g s at %d,", m.Seconds, m.Parts)
	}
	if f := in.Fit; f != nil {
		text += fmt.Sprintf(" fit %.2g + %.2g/P + %.2g P s,", f.Theta[0], f.Theta[1], f.Theta[2])
	}
	if !in.Settled {
		text += " still measured"
	}
	return text
}
