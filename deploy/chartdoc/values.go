package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// section is a table: the text above it, and its rows.
type section struct {
	text string
	rows []row
}

// row is a value: its path with dots, what it may be, its default, and what it is.
type row struct{ path, kind, standard, text string }

// longest is how many bytes of a default the table shows.
const longest = 70

// write writes the section as markdown. An error of w is not returned: w is a buffer.
func (s section) write(w io.Writer) {
	fmt.Fprintln(w)
	if s.text != "" {
		fmt.Fprintf(w, "%s\n\n", s.text)
	}
	fmt.Fprintln(w, "| value | type | default | what it is |")
	fmt.Fprintln(w, "| --- | --- | --- | --- |")
	for _, r := range s.rows {
		standard := "`" + r.standard + "`"
		if len(r.standard) > longest {
			standard = "see [values.yaml](values.yaml)"
		}
		fmt.Fprintf(w, "| `%s` | %s | %s | %s |\n", r.path, cell(r.kind), cell(standard), cell(r.text))
	}
}

// cell escapes text for a cell of a table.
func cell(text string) string { return strings.ReplaceAll(text, "|", `\|`) }

// reader walks through values.yaml beside its schema. A block of values whose schema has
// properties is descended into; anything else, including what is written in braces, is one row.
// It goes on after a fault, so that all of them are reported at once.
type reader struct {
	root     *schema
	sections []section // the last is being filled
	wrong    []error   // faults found so far
}

// read returns the sections in the order of values.yaml, or all faults of both files.
func read(values, schemaText []byte) ([]section, error) {
	var doc yaml.Node
	if err := yaml.Unmarshal(values, &doc); err != nil {
		return nil, fmt.Errorf("values.yaml: %w", err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, errors.New("values.yaml: want a mapping of values")
	}
	r := &reader{root: &schema{}}
	if err := json.Unmarshal(schemaText, r.root); err != nil {
		return nil, fmt.Errorf("values.schema.json: %w", err)
	}
	r.sections = []section{{}}
	// A comment at the head of the file is about all values.
	if about := words(doc.HeadComment); about != "" {
		r.sections[0].text = about
	}
	r.walk("", doc.Content[0], r.root)
	// A block whose values all have sections of their own leaves an empty one.
	r.sections = slices.DeleteFunc(r.sections, func(s section) bool { return len(s.rows) == 0 })
	return r.sections, errors.Join(r.wrong...)
}

// walk adds the values of a mapping, whose path is prefix and whose schema is s.
func (r *reader) walk(prefix string, mapping *yaml.Node, s *schema) {
	known := map[string]bool{}
	for i := 0; i < len(mapping.Content); i += 2 {
		key, value := mapping.Content[i], mapping.Content[i+1]
		path := prefix + key.Value
		known[key.Value] = true
		of, ok := s.Properties[key.Value]
		if !ok {
			r.wrong = append(r.wrong, fmt.Errorf("values.schema.json does not know %s", path))
			continue
		}
		of = r.resolve(of)
		if key.FootComment+value.FootComment != "" {
			r.wrong = append(r.wrong, fmt.Errorf("values.yaml: the comment below %s is taken for the end of it: put an empty line above the comment", path))
		}
		before, own := comments(key, value)
		deeper := value.Kind == yaml.MappingNode && value.Style&yaml.FlowStyle == 0 && len(of.Properties) > 0
		if deeper { // what stands above a block is about the whole of it
			before, own = strings.Join(slices.DeleteFunc([]string{before, own}, empty), "\n\n"), ""
		}
		if before != "" {
			r.sections = append(r.sections, section{text: before})
		}
		if deeper {
			r.walk(path+".", value, of)
			continue
		}
		if own == "" {
			r.wrong = append(r.wrong, fmt.Errorf("values.yaml says nothing of %s: put a comment above it", path))
		}
		// The newest section: values follow the comment that introduces them.
		last := &r.sections[len(r.sections)-1]
		last.rows = append(last.rows, row{path, r.kind(of), flow(value), own})
	}
	for name := range s.Properties {
		if !known[name] && prefix+name != "global" { // which helm has for charts of charts
			r.wrong = append(r.wrong, fmt.Errorf("values.yaml has no %s%s, which values.schema.json knows", prefix, name))
		}
	}
}

// empty reports whether s is empty.
func empty(s string) bool { return s == "" }

// comments returns what is said about a value: own is the last paragraph above it, with what
// stands beside it; before is the paragraphs above that, which are about everything that
// follows.
func comments(key, value *yaml.Node) (before, own string) {
	paragraphs := strings.Split(strings.TrimSpace(key.HeadComment), "\n\n")
	own = words(paragraphs[len(paragraphs)-1])
	var first []string
	for _, p := range paragraphs[:len(paragraphs)-1] {
		first = append(first, words(p))
	}
	if beside := words(key.LineComment + value.LineComment); beside != "" {
		own = strings.TrimSpace(own + " " + beside)
	}
	return strings.Join(first, "\n\n"), own
}

// words returns the text of a comment in one line.
func words(comment string) string {
	var all []string
	for line := range strings.Lines(comment) {
		all = append(all, strings.Fields(strings.TrimPrefix(strings.TrimSpace(line), "#"))...)
	}
	return strings.Join(all, " ")
}

// flow returns a value in one line, as --set-json and YAML's braces have it. Quotes are kept,
// since a number in quotes is text.
func flow(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		var parts []string
		for i := 0; i < len(n.Content); i += 2 {
			parts = append(parts, n.Content[i].Value+": "+flow(n.Content[i+1]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	case yaml.SequenceNode:
		var parts []string
		for _, c := range n.Content {
			parts = append(parts, flow(c))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	default:
		if n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 {
			return fmt.Sprintf("%q", n.Value)
		}
		return n.Value
	}
}
