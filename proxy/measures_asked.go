package proxy

import (
	"maps"
	"slices"
	"strings"

	"github.com/psidecar/psidecar/planner/api/measure"
	"github.com/psidecar/psidecar/proxy/codec/values"
)

// codecAsked returns the codec that a job's owner asks for, or "".
func (p *Proxy) codecAsked(job string) string {
	for _, t := range p.opts.Titles.All(job) {
		if t.Wishes.Codec != "" {
			return t.Wishes.Codec
		}
	}
	return ""
}

// asked returns the measure's setting according to the rules, at most four of them, and where
// those come from: the planner, the job's owner or the flags. The setting is empty where no
// rule sets it.
func (m *valueMeasure) asked(held []values.Held) (setting, from string) {
	var settings []string
	sources := map[string]bool{}
	for i := range held {
		text := m.set(&held[i].Rule)
		if text == "" {
			continue
		}
		// A rule for all keys needs no range.
		if k := held[i].Keys; k != (values.Range{Last: ^uint64(0)}) {
			text += " for keys " + k.String()
		}
		settings = append(settings, text)
		switch {
		case held[i].Planned:
			sources["planner"] = true
		// Owners can ask for a threshold only; see package policy.
		case held[i].Asked && m.name == measure.Threshold:
			sources[measure.Asked] = true
		default:
			sources["flags"] = true
		}
	}
	if len(sources) == 0 {
		return "", "flags"
	}
	return strings.Join(settings[:min(len(settings), 4)], ", "), strings.Join(slices.Sorted(maps.Keys(sources)), " and ")
}
