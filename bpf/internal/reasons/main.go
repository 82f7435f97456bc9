// Command reasons generates from reasons.txt what depends on the list of reasons: the C header,
// the Go list, and the documentation. There is one source, so a counter cannot have two
// meanings in C, Go, metrics and documents.
//
// go generate runs it in the folder of each package with such a list, with flags for the
// package's name, its classes of reasons, and the head of the documentation. A line of
// reasons.txt has a name, a class and an explanation; # starts a comment. Reasons are numbered
// in the order of the file.
package main

import (
	"bufio"
	"bytes"
	"flag"
	"fmt"
	"go/format"
	"log"
	"os"
	"slices"
	"strings"
)

// reason is one line of reasons.txt.
type reason struct{ name, class, text string }

// about describes the package whose list it is.
type about struct {
	pkg     string
	classes []string
	title   string // of REASONS.md
	intro   string // its first paragraph
}

func main() {
	log.SetFlags(0)
	var a about
	flag.StringVar(&a.pkg, "package", "bpf", "name of the Go package")
	classes := flag.String("classes", "seen,ignored,lost", "the classes of reasons, separated by commas")
	flag.StringVar(&a.title, "title", "Counters of the capture programs", "heading of REASONS.md")
	flag.StringVar(&a.intro, "intro", "Each counter has a number of events and of bytes. `seen` is inspected traffic, "+
		"`ignored` traffic that does not belong to a PS-lite job, `lost` traffic of a job that the capture did not see completely.", "first paragraph of REASONS.md")
	flag.Parse()
	a.classes = strings.Split(*classes, ",")
	if err := run("reasons.txt", a); err != nil {
		log.Fatalf("reasons: %v", err)
	}
}

// run generates the three files in the current folder. Nothing is written if the list has an
// error.
func run(path string, a about) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return err
	}
	list, err := parse(text, a.classes)
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	code, err := format.Source(goList(list, a.pkg))
	if err != nil {
		return fmt.Errorf("formatting the Go list: %w", err)
	}
	for name, content := range map[string][]byte{
		"reasons.h": cHeader(list), "reason_list.go": code, "REASONS.md": table(list, a),
	} {
		if err := os.WriteFile(name, content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// parse reads a list of reasons. Errors name the line.
func parse(text []byte, classes []string) ([]reason, error) {
	var list []reason
	lines := bufio.NewScanner(bytes.NewReader(text))
	for n := 1; lines.Scan(); n++ {
		line := strings.TrimSpace(lines.Text())
		if line == "" || line[0] == '#' {
			continue
		}
		words := strings.SplitN(line, " ", 3)
		if len(words) < 3 {
			return nil, fmt.Errorf("line %d: want a name, a class and an explanation", n)
		}
		r := reason{words[0], words[1], words[2]}
		if !slices.Contains(classes, r.class) {
			return nil, fmt.Errorf("line %d: class %q is none of %s", n, r.class, strings.Join(classes, ", "))
		}
		list = append(list, r)
	}
	return list, lines.Err()
}

const made = "made by internal/reasons from reasons.txt; DO NOT EDIT."

// cHeader returns an enum of the reasons, closed by their number.
func cHeader(list []reason) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "/* Code generated: %s */\n#pragma once\n\nenum reason {\n", made)
	for _, r := range list {
		fmt.Fprintf(&b, "\tR_%s,\n", strings.ToUpper(r.name))
	}
	b.WriteString("\tREASONS\n};\n")
	return b.Bytes()
}

// goList returns the Go constants and the table of names, classes and explanations,
// unformatted.
func goList(list []reason, pkg string) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "// Code generated: %s\n\npackage %s\n\n", made, pkg)
	b.WriteString("// What the programs count, as in reasons.txt.\nconst (\n")
	for i, r := range list {
		fmt.Fprintf(&b, "\t// %s: %s.\n\t%s Reason = %d\n", goName(r.name), r.text, goName(r.name), i)
	}
	b.WriteString(")\n\nvar reasonTable = [...]reasonText{\n")
	for _, r := range list {
		fmt.Fprintf(&b, "\t{%q, %s, %q},\n", r.name, "Class"+goName(r.class)[len("Reason"):], r.text)
	}
	b.WriteString("}\n")
	return b.Bytes()
}

// goName converts ring_full to ReasonRingFull.
func goName(name string) string {
	var b strings.Builder
	b.WriteString("Reason")
	for _, word := range strings.Split(name, "_") {
		if word == "tcp" || word == "zmtp" {
			b.WriteString(strings.ToUpper(word))
			continue
		}
		b.WriteString(strings.ToUpper(word[:1]) + word[1:])
	}
	return b.String()
}

// table returns the documentation in Markdown.
func table(list []reason, a about) []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "<!-- %s -->\n# %s\n\n%s\n\n", made, a.title, a.intro)
	b.WriteString("| counter | class | meaning |\n| --- | --- | --- |\n")
	for _, r := range list {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", r.name, r.class, r.text)
	}
	return b.Bytes()
}
