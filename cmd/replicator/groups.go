package main

import "github.com/alecthomas/kong"

// groups are the sections of run's flags in the help.
var groups = []kong.Group{
	{Key: "Where", Title: "Connections:"},
	{Key: "What", Title: "Filters and renames:"},
	{Key: "Start", Title: "Where a new link starts:"},
	{Key: "Copy", Title: "Initial sync:"},
	{Key: "Writing", Title: "Writing to the target:"},
	{Key: "Reading", Title: "Reading from the source:"},
	{Key: "Limits", Title: "Limits:"},
	{Key: "Feedback", Title: "Reporting to the source:"},
	{Key: "HTTP", Title: "HTTP:"},
	{Key: "Running", Title: "Running:"},
	{Key: "Promotion", Title: "Promotion:"},
	{Key: "Rewind", Title: "What only the old source has:"},
}
