package api

import "github.com/psidecar/psidecar/planner/api/measure"

// MeasuresTo converts lines to messages.
func MeasuresTo(lines []measure.Line) []*Measure {
	var list []*Measure
	for _, l := range lines {
		m := &Measure{Job: l.Job, Measure: l.Measure, State: l.State, Setting: l.Setting, From: l.From, On: uint32(l.On), Connections: uint32(l.Connections),
			HeldValues: l.HeldValues, HeldSquares: l.HeldSquares, StepSquares: l.StepSquares}
		for _, g := range l.Not {
			m.Not = append(m.Not, &MeasureGap{Reason: g.Reason, Connections: uint32(g.Connections), Why: g.Why, Do: g.Do})
		}
		list = append(list, m)
	}
	return list
}

// MeasuresFrom is the inverse of MeasuresTo.
func MeasuresFrom(list []*Measure) []measure.Line {
	var lines []measure.Line
	for _, m := range list {
		l := measure.Line{Job: m.GetJob(), Measure: m.GetMeasure(), State: m.GetState(), Setting: m.GetSetting(), From: m.GetFrom(),
			On: int(m.GetOn()), Connections: int(m.GetConnections()), Not: []measure.Gap{},
			HeldValues: m.GetHeldValues(), HeldSquares: m.GetHeldSquares(), StepSquares: m.GetStepSquares()}
		for _, g := range m.GetNot() {
			l.Not = append(l.Not, measure.Gap{Reason: g.GetReason(), Connections: int(g.GetConnections()), Why: g.GetWhy(), Do: g.GetDo()})
		}
		lines = append(lines, l)
	}
	return lines
}
