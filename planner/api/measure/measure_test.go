package measure

import (
	"math"
	"reflect"
	"testing"
)

// What several hosts say of a job is one line a measure, with sums.
func TestSum(t *testing.T) {
	first := []Line{
		{Job: "a", Measure: Threshold, State: On, Setting: "--threshold 0.99", From: "flags", On: 3, Connections: 3,
			HeldValues: 7, HeldSquares: 6, StepSquares: 3},
		{Job: "a", Measure: Slim, State: Off, Connections: 3, Not: []Gap{{Reason: NotSet, Why: "not enabled"}}},
	}
	second := []Line{
		{Job: "a", Measure: Slim, State: Off, Connections: 2, Not: []Gap{{Reason: NotSet, Why: "not enabled"}}},
		{Job: "a", Measure: Threshold, State: Off, Connections: 2, Not: []Gap{{Reason: NotSet, Why: "not enabled"}, {Reason: "no_proxy", Connections: 2, Why: "w"}},
			HeldValues: 2, HeldSquares: 3, StepSquares: 1},
		{Job: "b", Measure: Carry, State: On, On: 1, Connections: 1},
	}
	got := Sum(first, second)
	want := []Line{
		{Job: "a", Measure: Threshold, State: Part, Setting: "--threshold 0.99", From: "flags", On: 3, Connections: 5, Not: []Gap{{Reason: "no_proxy", Connections: 2, Why: "w"}},
			HeldValues: 9, HeldSquares: 9, StepSquares: 4},
		{Job: "a", Measure: Slim, State: Off, Connections: 5, Not: []Gap{{Reason: NotSet, Why: "not enabled"}}},
		{Job: "b", Measure: Carry, State: On, On: 1, Connections: 1, Not: []Gap{}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got  %+v\nwant %+v", got, want)
	}
	if text := got[0].String(); text != "part (flags: --threshold 0.99), 3 of 5 connections; 1.5 steps' gradient is held back" {
		t.Errorf("in words: %q", text)
	}
	if first[0].Not != nil || len(second[1].Not) != 2 {
		t.Error("what was given has changed")
	}
}

// Of a threshold that has ended only what is left is said; of a model that diverged, no number of
// steps.
func TestHeldBack(t *testing.T) {
	for want, l := range map[string]Line{
		"off": {State: Off}, "off; 3 values are held back": {State: Off, HeldValues: 3},
		"off; 5 values are held back":            {State: Off, HeldValues: 5, HeldSquares: math.NaN(), StepSquares: 1},
		"off; 6 values are held back":            {State: Off, HeldValues: 6, HeldSquares: math.Inf(1), StepSquares: 1},
		"off; 0.0 steps' gradient is held back":  {State: Off, StepSquares: 1},
		"off; 10.0 steps' gradient is held back": {State: Off, HeldValues: 3, HeldSquares: 100, StepSquares: 1},
	} {
		if got := l.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// Lines of no known job are those of the only one.
func TestOf(t *testing.T) {
	lines := []Line{{Job: "", Measure: Carry, On: 1, Connections: 2}, {Job: "a", Measure: Carry, On: 2, Connections: 2}, {Job: "b", Measure: Carry}}
	if of := Of(lines, "a", true); len(of) != 1 || of[0].On != 3 || of[0].Connections != 4 || of[0].Job != "a" || of[0].State != Part {
		t.Errorf("%+v", of)
	}
	if of := Of(lines, "a", false); len(of) != 1 || of[0].On != 2 || of[0].State != On {
		t.Errorf("%+v", of)
	}
}
