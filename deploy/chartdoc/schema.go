package main

import (
	"fmt"
	"strings"
)

// schema is as much of a JSON schema as the tables show.
type schema struct {
	Ref                  string             `json:"$ref"`
	Definitions          map[string]*schema `json:"definitions"`
	Type                 string             `json:"type"`
	Properties           map[string]*schema `json:"properties"`
	AdditionalProperties any                `json:"additionalProperties"`
	Items                *schema            `json:"items"`
	Enum                 []any              `json:"enum"`
	AnyOf                []*schema          `json:"anyOf"`
	Minimum              *float64           `json:"minimum"`
	Maximum              *float64           `json:"maximum"`
	ExclusiveMinimum     *float64           `json:"exclusiveMinimum"`
	ExclusiveMaximum     *float64           `json:"exclusiveMaximum"`
}

// resolve follows a reference to a definition. One that leads nowhere is noted in r.wrong, and
// stands for an empty schema.
func (r *reader) resolve(s *schema) *schema {
	name, isRef := strings.CutPrefix(s.Ref, "#/definitions/")
	if !isRef {
		return s
	}
	to, ok := r.root.Definitions[name]
	if !ok {
		r.wrong = append(r.wrong, fmt.Errorf("values.schema.json has no %s", s.Ref))
		return &schema{}
	}
	return to
}

// kind returns what a value may be, in words.
func (r *reader) kind(s *schema) string {
	s = r.resolve(s)
	switch {
	case len(s.Enum) > 0:
		var words []string
		for _, e := range s.Enum {
			word := fmt.Sprint(e)
			if word == "" {
				word = `""`
			}
			words = append(words, "`"+word+"`")
		}
		return strings.Join(words, ", ")
	case len(s.AnyOf) > 0: // the others are the same as text
		return r.kind(s.AnyOf[0])
	// A list whose elements have a type.
	case s.Type == "array" && s.Items != nil:
		return "list of " + r.kind(s.Items)
	case s.Type == "array":
		return "list"
	case s.Type == "object":
		return "map"
	case s.Type == "string":
		return "text"
	case s.Type == "boolean":
		return "true or false"
	default:
		return s.Type + within(s)
	}
}

// within returns the range of a number, with a comma before it; empty if it has none.
func within(s *schema) string {
	from, to := "", ""
	switch {
	case s.Minimum != nil:
		from = fmt.Sprintf("%.0f", *s.Minimum)
	case s.ExclusiveMinimum != nil:
		from = fmt.Sprintf("above %g", *s.ExclusiveMinimum)
	}
	switch {
	case s.Maximum != nil:
		to = fmt.Sprintf("%.0f", *s.Maximum)
	case s.ExclusiveMaximum != nil:
		to = fmt.Sprintf("below %g", *s.ExclusiveMaximum)
	}
	switch {
	case from != "" && to != "":
		return ", " + from + " to " + to
	case strings.HasPrefix(from, "above"):
		return ", " + from
	case from != "":
		return ", at least " + from
	case to != "":
		return ", at most " + to
	}
	return ""
}
