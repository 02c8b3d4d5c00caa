package main

import (
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/alecthomas/kong"
	"go.yaml.in/yaml/v3"

	"github.com/oplogrep/replicator/internal/mongo/driver"
)

// printConfig prints the effective settings as a file for --config, each with a
// comment on its origin. Passwords are not shown.
func (c *runCommand) printConfig(command *kong.Context, known *settings, w io.Writer) error {
	doc := &yaml.Node{Kind: yaml.MappingNode}
	doc.HeadComment = "The settings as they are. Passwords are shown as ***."
	for _, name := range known.strays() {
		doc.HeadComment += fmt.Sprintf("\nNo setting: %s in the environment.", name)
	}
	given := map[string]bool{}
	for _, p := range command.Path {
		if p.Flag != nil && !p.Resolved {
			given[p.Flag.Name] = true
		}
	}
	for _, flag := range command.Selected().Flags {
		if !known.known[flag.Name] || flag.Name == "config" {
			continue
		}
		value := c.show(flag)
		switch {
		case given[flag.Name]:
			value.LineComment = "flag"
		case known.origin[flag.Name] != "":
			value.LineComment = known.origin[flag.Name]
		default:
			value.LineComment = "default"
		}
		key := &yaml.Node{Kind: yaml.ScalarNode, Value: flag.Name}
		doc.Content = append(doc.Content, key, value)
	}
	out, err := yaml.Marshal(doc)
	if err != nil {
		return fmt.Errorf("print the settings: %w", err)
	}
	if _, err := w.Write(out); err != nil {
		return fmt.Errorf("print the settings: %w", err)
	}
	return nil
}

// show returns a flag's value as YAML, without passwords.
func (c *runCommand) show(flag *kong.Flag) *yaml.Node {
	switch flag.Name {
	case "source":
		return text(redacted(c.Source, c.SourceLogin.config(c.Source, c.SelectionTimeout)))
	case "target":
		return text(redacted(c.Target, c.TargetLogin.config(c.Target, c.SelectionTimeout)))
	case "start-at":
		// The default depends on other flags; printed, it could conflict with
		// some of them.
		return text(c.startText())
	}
	switch v := flag.Target.Interface().(type) {
	case string:
		return text(v)
	case []string:
		return list(v)
	case []tags:
		var all []string
		for _, t := range v {
			all = append(all, t.String())
		}
		return list(all)
	case []hostAddress:
		var all []string
		for _, h := range v {
			all = append(all, h.String())
		}
		return list(all)
	case time.Duration:
		return text(v.String())
	case moment:
		return text(v.String())
	default: // sizes, numbers and booleans need no quotes
		return &yaml.Node{Kind: yaml.ScalarNode, Value: fmt.Sprint(v)}
	}
}

// redacted returns a connection string without its secrets. Of one that cannot
// be parsed it shows nothing: any part of it may be a password.
func redacted(uri string, cfg driver.Config) string {
	if uri == "" {
		return ""
	}
	o, err := driver.Parse(cfg)
	if err != nil {
		return "***"
	}
	return o.String()
}

func text(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

func list(all []string) *yaml.Node {
	n := &yaml.Node{Kind: yaml.SequenceNode, Style: yaml.FlowStyle}
	for _, s := range slices.Clone(all) {
		n.Content = append(n.Content, text(s))
	}
	return n
}
